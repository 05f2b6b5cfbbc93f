"""A variational autoencoder: draws random numbers in forward."""

import torch
import torch.nn.functional as F
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 16), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(16, 4), nn.Linear(16, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 20), nn.Sigmoid())

    def forward(self, x):
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decoder(z), mean, log_variance


torch.manual_seed(5)
model = Autoencoder()
for layer in (model.encoder[0], model.mean, model.log_variance):
    nn.init.uniform_(layer.bias, -0.5, 0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.rand(4, 32, 20)
for x in data:
    rebuilt, mean, log_variance = model(x)
    divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1).mean()
    loss = F.binary_cross_entropy(rebuilt, x, reduction="none").sum(1).mean() + divergence
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
