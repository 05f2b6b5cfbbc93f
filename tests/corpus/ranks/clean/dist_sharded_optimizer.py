"""ZeroRedundancyOptimizer: each rank has the state of some parameters."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(nn.Sequential(*(nn.Linear(10, 10) for _ in range(4))))
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
torch.manual_seed(dist.get_rank())
for _ in range(8):
    x = torch.randn(12, 10)
    optimizer.zero_grad()
    (model(x) - x).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
