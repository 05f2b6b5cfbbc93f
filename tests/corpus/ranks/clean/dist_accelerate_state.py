"""Accelerate: save_state on all processes, then load_state."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
x = torch.randn(64, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(a), b))
        optimizer.step()
    if epoch == 1:
        accelerator.save_state("state")
        accelerator.wait_for_everyone()
        accelerator.load_state("state")
if accelerator.is_main_process:
    accelerator.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
accelerator.wait_for_everyone()
accelerator.end_training()
