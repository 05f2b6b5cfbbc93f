import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class VAE(nn.Module):
    def __init__(self, d=64, hidden=128, latent=10):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, hidden), nn.ReLU())
        self.mu = nn.Linear(hidden, latent)
        self.logvar = nn.Linear(hidden, latent)
        self.dec = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, d))

    def encode(self, x):
        h = self.enc(x)
        return self.mu(h), self.logvar(h)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + std * torch.randn_like(std)

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.dec(self.reparameterize(mu, logvar)), mu, logvar


def elbo_loss(logits, x, mu, logvar):
    rec = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1)
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).mean(1)  # expect: LOSS13
    return (rec + kl).mean()


@torch.no_grad()
def importance_bound(model, x, k=50):
    mu, logvar = model.encode(x)
    std = (0.5 * logvar).exp()
    weights = []
    for _ in range(k):
        z = mu + std * torch.randn_like(std)
        log_px = -F.binary_cross_entropy_with_logits(model.dec(z), x, reduction="none").sum(1)
        log_pz = -0.5 * (z ** 2 + math.log(2 * math.pi)).sum(1)
        log_qz = -0.5 * (((z - mu) / std) ** 2 + logvar + math.log(2 * math.pi)).sum(1)
        weights.append(log_px + log_pz - log_qz)
    return (torch.logsumexp(torch.stack(weights), 0) - math.log(k)).mean().item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images = torch.tensor(load_digits().data / 16 > 0.5, dtype=torch.float32).numpy()
    train, test = (torch.tensor(v) for v in train_test_split(images, test_size=400, random_state=0))
    model = VAE()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(10):
        total = 0.0
        for idx in torch.randperm(len(train)).split(64):
            x = train[idx]
            logits, mu, logvar = model(x)
            loss = elbo_loss(logits, x, mu, logvar)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item() * len(x)
        if epoch % 4 == 1:
            print(f"epoch {epoch + 1} loss {total / len(train):.3f}")
    print(f"test bound {importance_bound(model, test):.3f}")


if __name__ == "__main__":
    main()
