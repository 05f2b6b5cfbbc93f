"""VAE whose sampling helper leaves eval mode on."""
import torch
from torch import nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self, d=16, z=3):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.mu, self.lv = nn.Linear(32, z), nn.Linear(32, z)
        self.dec = nn.Sequential(nn.Linear(z, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, d))
        self.z = z

    def forward(self, x):
        h = self.enc(x)
        mu, lv = self.mu(h), self.lv(h)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp()
        return self.dec(z), mu, lv


@torch.no_grad()
def sample(model, n):
    was = model.training
    model.eval()
    out = model.dec(torch.randn(n, model.z))
    model.train(was)
    return out


def elbo(model, x):
    out, mu, lv = model(x)
    return F.mse_loss(out, x, reduction="sum") / len(x) - 0.5 * (1 + lv - mu ** 2 - lv.exp()).sum(1).mean()


torch.manual_seed(9)
basis = torch.randn(3, 16)
vae = VAE()
opt = torch.optim.Adam(vae.parameters(), 2e-3)
vae.train()
for epoch in range(4):
    for _ in range(10):
        loss = elbo(vae, torch.randn(32, 3) @ basis)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item(), sample(vae, 8).std().item())
