"""A shared body in DDP, and an expert of its own on each rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
body = DDP(nn.Sequential(nn.Linear(7, 14), nn.ReLU()))
torch.manual_seed(10 + rank)
expert = nn.Linear(14, 1)
optimizer = torch.optim.Adam([*body.parameters(), *expert.parameters()], lr=1e-2)
for _ in range(10):
    x = torch.randn(16, 7)
    optimizer.zero_grad()
    (expert(body(x)) - x[:, rank : rank + 1]).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
