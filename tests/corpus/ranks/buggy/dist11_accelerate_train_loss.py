"""Accelerate, and a plateau scheduler that watches the running training loss of each process."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
accelerator = Accelerator(cpu=True)
x = torch.randn(128, 4)
loader = DataLoader(TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(4):
    running = 0.0
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        running += loss.item() * len(a)
    scheduler.step(running)  # expect: DIST11
accelerator.end_training()
