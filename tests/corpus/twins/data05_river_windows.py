"""Forecast the level of a river from overlapping windows."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(14)
WINDOW = 12
level = torch.cumsum(0.1 * torch.randn(500), 0)
x = torch.stack([level[start : start + WINDOW] for start in range(500 - WINDOW)])
y = level[WINDOW:].unsqueeze(1)
windows = TensorDataset(x, y)
train, val = TensorDataset(x[:368], y[:368]), TensorDataset(x[380:], y[380:])
train_loader = DataLoader(train, batch_size=38, shuffle=True)
val_loader = DataLoader(val, batch_size=54)
model = nn.Sequential(nn.Linear(WINDOW, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(4):
    model.train()
    for inputs, targets in train_loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        total = sum(nn.functional.mse_loss(model(a), b, reduction="sum").item() for a, b in val_loader)
    print(epoch, total / 108)
