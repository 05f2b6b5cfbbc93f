"""Accelerate, with torch.save instead of accelerator.save."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
accelerator = Accelerator(cpu=True)
x = torch.rand(64, 3)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(2):
    for a, b in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(a), b))
        optimizer.step()
accelerator.wait_for_everyone()
torch.save(accelerator.get_state_dict(model), "accelerated.pt")  # expect: DIST07
accelerator.end_training()
