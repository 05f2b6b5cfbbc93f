"""Regression with Accelerate; the model is unwrapped once and then trained."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
x = torch.randn(96, 10)
loader = DataLoader(TensorDataset(x, x @ torch.randn(10, 1)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
network = accelerator.unwrap_model(model)
for epoch in range(2):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(network(inputs), targets)  # expect: DIST01
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    accelerator.print(epoch, loss.item())
accelerator.end_training()
