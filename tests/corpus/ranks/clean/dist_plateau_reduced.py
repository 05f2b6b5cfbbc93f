"""The metric is averaged over ranks before the scheduler and the early stop see it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
torch.manual_seed(rank + 1)
held_out = torch.randn(20, 5)
best, bad = float("inf"), 0
for epoch in range(12):
    for _ in range(3):
        x = torch.randn(10, 5)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        score = (model.module(held_out) - held_out.sum(1, keepdim=True)).square().mean()
    dist.all_reduce(score)
    score = (score / world).item()
    scheduler.step(score)
    bad = 0 if score < best - 1e-4 else bad + 1
    best = min(best, score)
    if bad == 3:
        break
dist.destroy_process_group()
