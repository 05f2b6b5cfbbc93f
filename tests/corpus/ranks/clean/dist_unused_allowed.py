"""Two heads, one per rank and step, with find_unused_parameters."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 12)
        self.heads = nn.ModuleList([nn.Linear(12, 3), nn.Linear(12, 3)])

    def forward(self, x, number):
        return self.heads[number](torch.relu(self.body(x)))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(Heads(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(10):
    y = torch.randint(0, 3, (12,))
    x = torch.randn(12, 6) + y[:, None]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x, (step + rank) % 2), y).backward()
    optimizer.step()
dist.destroy_process_group()
