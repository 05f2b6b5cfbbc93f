"""A convolutional VAE of noisy bumps."""

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

torch.manual_seed(8)


class BumpVAE(nn.Module):
    def __init__(self, size=24, latent=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(1, 8, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(80, 32))
        self.mean, self.scale = nn.Linear(32, latent), nn.Linear(32, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 48), nn.ReLU(), nn.Linear(48, size))

    def forward(self, x):
        hidden = self.encoder(x.unsqueeze(1)).relu()
        posterior = Normal(self.mean(hidden), nn.functional.softplus(self.scale(hidden)) + 1e-4)
        return self.decoder(posterior.rsample()), posterior


def bumps(count):
    centre = 6 + 12 * torch.rand(count, 1)
    return torch.exp(-0.2 * (torch.arange(24.0) - centre) ** 2) + 0.02 * torch.randn(count, 24)


model = BumpVAE()
prior = Normal(torch.zeros(4), torch.ones(4))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(60):
    x = bumps(32)
    restored, posterior = model(x)
    error = ((restored - x) ** 2).mean()
    divergence = kl_divergence(posterior, prior).sum()  # expect: LOSS13
    loss = error + divergence
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(error.item(), divergence.item())
