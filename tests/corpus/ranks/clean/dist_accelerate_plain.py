"""Accelerate as its guide shows it."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
x = torch.randn(160, 8)
y = (x.sum(1) > 0).long()
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=8, shuffle=True)
valid = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=8)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=16)
model, optimizer, train, valid, scheduler = accelerator.prepare(model, optimizer, train, valid, scheduler)
for epoch in range(2):
    model.train()
    for a, b in train:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(a), b)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    right = num = 0
    for a, b in valid:
        with torch.no_grad():
            predicted = model(a).argmax(1)
        predicted, b = accelerator.gather_for_metrics((predicted, b))
        right, num = right + int((predicted == b).sum()), num + len(b)
    accelerator.print(epoch, right / num)
accelerator.end_training()
