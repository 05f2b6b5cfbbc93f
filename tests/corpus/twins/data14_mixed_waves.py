"""Classify noisy waves, with mixup of inputs and labels."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)
time = torch.linspace(0, 6.28, 24)
labels = torch.arange(240) % 3
waves = torch.sin((labels + 1).unsqueeze(1) * time + torch.rand(240, 1)) + 0.1 * torch.randn(240, 24)


def mixup(x, y, share):
    order = torch.randperm(x.size(0))
    return x * share + x[order] * (1 - share), y[order]


model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
loader = DataLoader(TensorDataset(waves, labels), batch_size=40, shuffle=True)
for epoch in range(8):
    for x, y in loader:
        share = torch.rand(())
        mixed, others = mixup(x, y, share)
        scores = model(mixed)
        loss = share * F.cross_entropy(scores, y) + (1 - share) * F.cross_entropy(scores, others)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
