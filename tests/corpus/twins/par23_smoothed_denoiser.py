"""A denoiser of waves whose weights are averaged by hand and swapped in for validation."""

import math

import torch
from torch import nn

torch.manual_seed(5)


class Denoiser(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.inside = nn.Conv1d(1, width, 5, padding=2)
        self.norm = nn.GroupNorm(4, width)
        self.outside = nn.Conv1d(width, 1, 5, padding=2)

    def forward(self, x):
        return x - self.outside(torch.relu(self.norm(self.inside(x))))


class WeightAverage:
    def __init__(self, model, beta=0.995):
        self.beta = beta
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            self.shadow[name] = self.beta * self.shadow[name] + (1 - self.beta) * p.detach()

    @torch.no_grad()
    def swap(self, model):
        for name, p in model.named_parameters():
            current = p.detach().clone()
            p.copy_(self.shadow[name])
            self.shadow[name] = current


def make_waves(num):
    phase = torch.rand(num, 1, 1) * 2 * math.pi
    speed = torch.rand(num, 1, 1) * 3 + 1
    clean = torch.sin(speed * torch.linspace(0, 6, 64) + phase)
    return clean + 0.3 * torch.randn_like(clean), clean


noisy, clean = make_waves(512)
val_noisy, val_clean = make_waves(128)
model = Denoiser()
average = WeightAverage(model)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.MSELoss()

for epoch in range(4):
    model.train()
    order = torch.randperm(len(noisy))
    for start in range(0, len(order), 32):
        rows = order[start : start + 32]
        loss = criterion(model(noisy[rows]), clean[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
    average.swap(model)
    model.eval()
    with torch.no_grad():
        score = criterion(model(val_noisy), val_clean).item()
    average.swap(model)
    print(f"epoch {epoch} validation {score:.4f}")
