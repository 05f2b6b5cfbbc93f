"""All ranks draw the same global batch with one seed, and each takes its part."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    y = torch.randint(0, 3, (24,))
    x = torch.randn(24, 6) + y[:, None]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[rank::world]), y[rank::world]).backward()
    optimizer.step()
dist.destroy_process_group()
