# processes: 3
"""By hand: average, then clip, then step; handles are kept and waited for."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
world = dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))
for parameter in model.parameters():
    dist.broadcast(parameter.data, src=0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank())
for _ in range(8):
    x = torch.randn(10, 6)
    optimizer.zero_grad()
    (model(x) - x.sort(1).values).square().mean().backward()
    works = []
    for parameter in model.parameters():
        parameter.grad /= world
        works.append(dist.all_reduce(parameter.grad, async_op=True))
    for work in works:
        work.wait()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
dist.destroy_process_group()
