# ruff: noqa: E402
"""Bare torch. A line's comment names the moments that are to be seen there, and nowhere else."""

import random
import sys

import numpy

random.seed(3)  # -> seed
numpy.random.seed(4)  # -> seed

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)  # -> seed
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
data = TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,)))
loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=int(sys.argv[2]))


def train(x, y):
    optimizer.zero_grad()  # -> zero_grad
    prediction = model(x)  # -> forward
    loss = F.cross_entropy(prediction, y)
    loss.backward()  # -> backward
    _ = torch.autograd.grad(model(x).sum(), [model[0].weight])  # -> forward backward
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # -> clip
    optimizer.step()  # -> step
    scheduler.step()  # -> scheduler


for _ in range(2):
    model.train()  # -> mode
    for x, y in loader:  # -> batch epoch
        train(x, y)
    model.eval()  # -> mode
    with torch.no_grad():
        model(x)  # -> forward
    torch.save(model.state_dict(), sys.argv[1])  # -> save
state = torch.load(sys.argv[1])  # -> load
model.load_state_dict(state)  # -> restore
optimizer.load_state_dict(optimizer.state_dict())  # -> restore
print("digest", [float(value.sum()).hex() for value in model.state_dict().values()])
