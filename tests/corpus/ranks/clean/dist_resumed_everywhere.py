"""The first rank saves, all wait, all load."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def steps(model, optimizer, count):
    for _ in range(count):
        x = torch.randn(12, 5)
        optimizer.zero_grad()
        (model(x) - x.cumsum(1)).square().mean().backward()
        optimizer.step()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Linear(5, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(rank)
steps(model, optimizer, 5)
if rank == 0:
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, "state.pt")
dist.barrier()
state = torch.load("state.pt", map_location="cpu", weights_only=True)
model = DDP(nn.Linear(5, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model.module.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
steps(model, optimizer, 5)
dist.destroy_process_group()
