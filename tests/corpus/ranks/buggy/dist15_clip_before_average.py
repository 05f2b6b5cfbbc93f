"""Averaging by hand, after the clipping."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad_norm_

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(6)
model = nn.GRU(4, 8, batch_first=True)
head = nn.Linear(8, 4)
parameters = [*model.parameters(), *head.parameters()]
optimizer = torch.optim.RMSprop(parameters, lr=5e-3)
torch.manual_seed(60 + rank)
for _ in range(10):
    x = torch.randn(6, 9, 4).cumsum(1)
    loss = nn.functional.mse_loss(head(model(x[:, :-1])[0]), x[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    clip_grad_norm_(parameters, max_norm=0.5)  # expect: DIST15
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    optimizer.step()
dist.destroy_process_group()
