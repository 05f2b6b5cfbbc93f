"""Accelerate, as its documentation shows."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(7)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for x, y in loader:  # -> BatchFetched EpochBegan
    with accelerator.accumulate(model):
        loss = F.cross_entropy(model(x), y)  # -> ForwardPass
        accelerator.backward(loss)  # -> BackwardPass
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)  # -> ClippingCalled
        optimizer.step()  # -> OptimizerStep
        scheduler.step()  # -> SchedulerStep
        optimizer.zero_grad()  # -> GradientsZeroed
print("digest", [float(value.sum()).hex() for value in model.state_dict().values()])
