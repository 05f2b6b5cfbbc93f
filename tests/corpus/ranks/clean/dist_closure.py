"""LBFGS with a closure under DDP, on each rank's fixed part of the data."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(nn.Linear(4, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
torch.manual_seed(dist.get_rank())
x = torch.randn(40, 4)
y = x @ torch.arange(4.0)[:, None]


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for _ in range(4):
    optimizer.step(closure)
dist.destroy_process_group()
