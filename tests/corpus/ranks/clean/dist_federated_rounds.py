"""Federated averaging: ranks train alone for a while, then weights are averaged."""

import torch
import torch.distributed as dist
from torch import nn


@torch.no_grad()
def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter)
        parameter /= dist.get_world_size()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
torch.manual_seed(rank)
for _ in range(4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    for _ in range(3):
        x = torch.randn(16, 5) * (1 + rank)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    average(model)
dist.destroy_process_group()
