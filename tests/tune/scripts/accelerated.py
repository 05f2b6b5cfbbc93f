"""Accelerate makes a loader of its own from the script's."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
dataset = TensorDataset(torch.randn(480, 4))
valid = DataLoader(dataset, batch_size=16)
loader = DataLoader(dataset, batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader, valid = accelerator.prepare(model, optimizer, loader, valid)
for epoch in range(10):
    for (x,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
        if epoch == 0:
            print("training", len(x), flush=True)
    with torch.no_grad():
        print("validation", len(next(iter(valid))[0]), flush=True)
