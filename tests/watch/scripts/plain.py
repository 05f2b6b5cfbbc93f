# ruff: noqa: E402
"""Bare torch. A line's comment names the moments that are to be seen there, and nowhere else."""

import random
import sys

import numpy

random.seed(3)  # -> GeneratorSeeded
numpy.random.seed(4)  # -> GeneratorSeeded

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)  # -> GeneratorSeeded
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
data = TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,)))
loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=int(sys.argv[2]))


def train(x, y):
    optimizer.zero_grad()  # -> GradientsZeroed
    prediction = model(x)  # -> ForwardPass
    loss = F.cross_entropy(prediction, y)
    loss.backward()  # -> BackwardPass
    _ = torch.autograd.grad(model(x).sum(), [model[0].weight])  # -> ForwardPass BackwardPass
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # -> ClippingCalled
    optimizer.step()  # -> OptimizerStep
    scheduler.step()  # -> SchedulerStep


for _ in range(2):
    model.train()  # -> ModeSet
    for x, y in loader:  # -> BatchFetched EpochBegan
        train(x, y)
    model.eval()  # -> ModeSet
    with torch.no_grad():
        model(x)  # -> ForwardPass
    torch.save(model.state_dict(), sys.argv[1])  # -> FileSaved
state = torch.load(sys.argv[1])  # -> FileLoaded
model.load_state_dict(state)  # -> StateLoaded
optimizer.load_state_dict(optimizer.state_dict())  # -> StateLoaded
print("digest", [float(value.sum()).hex() for value in model.state_dict().values()])
