"""Micro-batches under no_sync, clipped once, with a warm-up of the learning rate."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(128, 8)
data = TensorDataset(x, x[:, :1] * x[:, 1:2])
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=4)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for number, (a, b) in enumerate(loader):
        is_last = number % 4 == 3
        with contextlib.nullcontext() if is_last else model.no_sync():
            (nn.functional.mse_loss(model(a), b) / 4).backward()
        if is_last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warmup.step()
            optimizer.zero_grad()
dist.destroy_process_group()
