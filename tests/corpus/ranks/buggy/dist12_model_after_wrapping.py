"""Warm start: the first rank loads pretrained weights after the model is wrapped."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def build():
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(99)
pretrained = build().state_dict()
torch.manual_seed(0)
model = DDP(build())
if rank == 0:
    model.module.load_state_dict(pretrained)  # expect: DIST12
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for _ in range(8):
    y = torch.randint(0, 2, (16,))
    x = torch.randn(16, 6) + y[:, None]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
dist.destroy_process_group()
