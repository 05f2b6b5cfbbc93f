"""Variational autoencoder on digits: logits out of the decoder, summed reconstruction plus KL per image."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class VAE(nn.Module):
    def __init__(self, latent=8, hidden=96):
        super().__init__()
        self.latent = latent
        self.encoder = nn.Sequential(nn.Linear(64, hidden), nn.GELU())
        self.mean = nn.Linear(hidden, latent)
        self.log_variance = nn.Linear(hidden, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.GELU(), nn.Linear(hidden, 64))

    def forward(self, x):
        h = self.encoder(2 * x - 1)
        mean, log_variance = self.mean(h), self.log_variance(h)
        z = mean
        if self.training:
            z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decoder(z), mean, log_variance


def negative_elbo(logits, x, mean, log_variance):
    reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum()
    return (reconstruction + divergence) / len(x)


def epochs_of(x, batch):
    """Yield batches for ever, one epoch's permutation after the other."""
    while True:
        for rows in torch.randperm(len(x)).split(batch):
            if len(rows) == batch:
                yield x[rows]


def main(steps=160, batch=96):
    torch.manual_seed(101)
    x = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    x = x[torch.randperm(len(x))]
    x_train, x_test = x[:1500], x[1500:]
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train()
    stream = epochs_of(x_train, batch)
    for step in range(steps):
        images = next(stream)
        logits, mean, log_variance = model(images)
        loss = negative_elbo(logits, images, mean, log_variance)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step}: negative elbo {loss.item():.2f}")

    model.eval()
    with torch.no_grad():
        logits, mean, log_variance = model(x_test)
        print(f"test {negative_elbo(logits, x_test, mean, log_variance).item():.2f}")
        samples = torch.sigmoid(model.decoder(torch.randn(100, model.latent)))
    print(f"brightness of samples {samples.mean().item():.3f}, of data {x_test.mean().item():.3f}")


if __name__ == "__main__":
    main()
