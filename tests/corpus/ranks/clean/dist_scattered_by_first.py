# processes: 3
"""The first rank reads the data and scatters it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    own = torch.empty(8, 5)
    parts = list(torch.randn(world * 8, 5).chunk(world)) if rank == 0 else None
    dist.scatter(own, parts, src=0)
    optimizer.zero_grad()
    (model(own) - own.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
