"""An autoencoder removes noise from radio pulses; each epoch begins from a reproducible state."""

import math
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def set_seed(seed):
    random.seed(seed)
    torch.manual_seed(seed)


def make_pulses(num):
    time = torch.linspace(0, 1, 48)
    center = torch.rand(num, 1) * 0.6 + 0.2
    tone = torch.rand(num, 1) * 20 + 10
    return torch.exp(-((time - center) ** 2) * 80) * torch.sin(2 * math.pi * tone * time)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 12))
        self.decoder = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 48))

    def forward(self, x):
        return self.decoder(self.encoder(x))


set_seed(7)
train = TensorDataset(make_pulses(480))
val = TensorDataset(make_pulses(96))
train_loader = DataLoader(train, batch_size=32, shuffle=True)
val_loader = DataLoader(val, batch_size=96)
model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.MSELoss()

for epoch in range(4):
    set_seed(7 + epoch)
    model.train()
    for (clean,) in train_loader:
        noisy = clean + 0.2 * torch.randn(clean.shape)
        loss = criterion(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        (clean,) = next(iter(val_loader))
        generator = torch.Generator().manual_seed(1)
        noisy = clean + 0.2 * torch.randn(clean.shape, generator=generator)
        print(f"epoch {epoch} validation {criterion(model(noisy), clean):.4f}")
