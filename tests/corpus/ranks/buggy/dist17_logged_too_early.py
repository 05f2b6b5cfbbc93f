"""The mean loss is reduced in the background, and printed at once."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(10):
    x = torch.randn(20, 3)
    loss = (model(x) - x.amax(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shown = loss.detach().clone()
    dist.all_reduce(shown, async_op=True)  # expect: DIST17
    if rank == 0:
        print(step, shown.item() / world)
dist.barrier()
dist.destroy_process_group()
