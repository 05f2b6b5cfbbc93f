"""Trains with `Run` on the device that is its argument. The self-test kills it and starts it again."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import truestep as ts

device = torch.device(sys.argv[1])
run = ts.Run("run", seed=7, lanes=2, snapshots=ts.Snapshots(every_steps=5))
inputs = torch.randn(512, 16, generator=torch.Generator().manual_seed(1))
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
model = run.place(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2)))
if next(model.parameters()).device.type != device.type:
    raise SystemExit(f"Run has placed the model on {next(model.parameters()).device}, not on {device}")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
run.track(model=model, optimizer=optimizer)
for step in run.steps(ts.Loader(data, batch_size=32), steps=60):
    for x, y in step:
        step.backward(F.cross_entropy(model(x), y))
    step.update(optimizer, clip_norm=1.0)
