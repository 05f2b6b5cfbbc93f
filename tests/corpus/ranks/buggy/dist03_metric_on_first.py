"""The validation loss is reduced where only the first rank goes."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(rank + 1)
held_out = torch.randn(32, 4), torch.randint(0, 3, (32,))


def reduced(value):
    total = value.detach().clone()
    dist.all_reduce(total)  # expect: DIST03
    return total.item() / world


for step in range(20):
    y = torch.randint(0, 3, (16,))
    x = torch.randn(16, 4) + y[:, None]
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 19 and rank == 0:
        model.eval()
        with torch.no_grad():
            score = nn.functional.cross_entropy(model.module(held_out[0]), held_out[1])
        print(step, reduced(score))  # expect: DIST03
        model.train()
dist.destroy_process_group()
