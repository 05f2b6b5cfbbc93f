"""Training with truestep's own loop and loader."""

import sys

import torch
from torch import nn

import truestep as ts

run = ts.Run("runs/sized", seed=7, lanes=2)
model = run.place(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = ts.Loader([torch.randn(4) for _ in range(256)], batch_size=8, workers=int(sys.argv[1]))
run.track(model=model, optimizer=optimizer)
for step in run.steps(loader, epochs=20):
    for x in step:
        if step.index == 0:
            print("lane", len(x), flush=True)
        step.backward(model(x).pow(2).mean())
    step.update(optimizer)
