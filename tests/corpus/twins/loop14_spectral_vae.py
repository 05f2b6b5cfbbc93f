"""VAE with a spectrally normalised encoder."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import spectral_norm


class VAE(nn.Module):
    def __init__(self, d=16, z=3):
        super().__init__()
        self.enc = spectral_norm(nn.Linear(d, 32))
        self.mu = nn.Linear(32, z)
        self.logvar = nn.Linear(32, z)
        self.dec = nn.Sequential(nn.Linear(z, 32), nn.ReLU(), nn.Linear(32, d))

    def encode(self, x):
        h = F.relu(self.enc(x))
        return self.mu(h), self.logvar(h)

    def forward(self, x):
        mu, logvar = self.encode(x)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


def elbo(x, out, mu, logvar):
    rec = F.mse_loss(out, x, reduction="sum") / len(x)
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    return rec + 0.1 * kl


torch.manual_seed(0)
x = torch.randn(256, 3) @ torch.randn(3, 16)
model = VAE()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(3):
    for idx in torch.randperm(256).split(32):
        out, mu, logvar = model(x[idx])
        loss = elbo(x[idx], out, mu, logvar)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
