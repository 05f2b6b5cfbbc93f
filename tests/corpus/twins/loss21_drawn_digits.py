"""A variational autoencoder of small digits."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(21)
images = torch.tensor(load_digits().images, dtype=torch.float32).flatten(1) / 16


class DigitVAE(nn.Module):
    def __init__(self, hidden: int = 64, latent: int = 6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, hidden), nn.ReLU())
        self.to_mu = nn.Linear(hidden, latent)
        self.to_log_var = nn.Linear(hidden, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, 64))

    def reparameterize(self, mu: torch.Tensor, log_var: torch.Tensor) -> torch.Tensor:
        std = log_var.mul(0.5).exp()
        eps = torch.randn_like(std)
        return eps.mul(std).add_(mu)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        features = self.encoder(x)
        mu, log_var = self.to_mu(features), self.to_log_var(features)
        return self.decoder(self.reparameterize(mu, log_var)), mu, log_var


def negative_bound(x: torch.Tensor, scores: torch.Tensor, mu: torch.Tensor, log_var: torch.Tensor):
    reconstruction = F.binary_cross_entropy_with_logits(scores, x, reduction="sum")
    divergence = 0.5 * torch.sum(mu.pow(2) + torch.exp(log_var) - 1 - log_var)
    return (reconstruction + divergence) / len(x)


model = DigitVAE()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
model.train()
for epoch in range(2):
    total = 0.0
    for rows in torch.randperm(len(images)).split(128):
        batch = images[rows]
        loss = negative_bound(batch, *model(batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch)
    print(f"epoch {epoch}: {total / len(images):.2f}")

model.eval()
with torch.no_grad():
    drawn = torch.sigmoid(model.decoder(torch.randn(8, 6)))
print(f"mean brightness of drawn digits: {drawn.mean():.3f}")
