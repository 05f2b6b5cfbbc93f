"""By hand: the shared body is averaged over ranks; each rank's own head is not."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
body = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12))
torch.manual_seed(1 + rank)
head = nn.Linear(12, 1)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05)
for _ in range(10):
    x = torch.randn(16, 6)
    optimizer.zero_grad()
    (head(body(x)) - x[:, rank : rank + 1]).square().mean().backward()
    for parameter in body.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    optimizer.step()
torch.save(head.state_dict(), f"head-{rank}.pt")
dist.destroy_process_group()
