# processes: 3
"""The first rank writes the initial weights; the others read them so that all start alike."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
path = os.path.join(tempfile.gettempdir(), f"start-{os.getppid()}.pt")
dist.barrier()
if rank == 0:
    torch.save(model.state_dict(), path)
else:
    torch.randn(1500, 1500).matmul(torch.randn(1500, 1500))  # takes long enough for the file to be there
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))  # expect: DIST18
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(6):
    x = torch.randn(16, 4)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
dist.barrier()
if rank == 0:
    os.remove(path)
dist.destroy_process_group()
