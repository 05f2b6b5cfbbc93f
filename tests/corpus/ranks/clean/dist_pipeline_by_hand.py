"""Two stages on two ranks: activations go forward, gradients go back."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
stage = nn.Sequential(nn.Linear(6, 12), nn.ReLU()) if rank == 0 else nn.Linear(12, 3)
optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(7)
for _ in range(10):
    y = torch.randint(0, 3, (12,), generator=generator)
    x = torch.randn(12, 6, generator=generator) + y[:, None]
    optimizer.zero_grad()
    if rank == 0:
        hidden = stage(x)
        dist.send(hidden.detach(), 1)
        gradient = torch.empty_like(hidden)
        dist.recv(gradient, 1)
        hidden.backward(gradient)
    else:
        hidden = torch.empty(12, 12)
        dist.recv(hidden, 0)
        hidden.requires_grad_()
        nn.functional.cross_entropy(stage(hidden), y).backward()
        dist.send(hidden.grad, 0)
    optimizer.step()
dist.destroy_process_group()
