"""Gradients are reduced by hooks as they arrive, and futures are waited for before the step."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
world = dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
pending = []


def reduce(parameter):
    parameter.grad.div_(world)
    pending.append(dist.all_reduce(parameter.grad, async_op=True).get_future())


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(reduce)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for _ in range(8):
    y = torch.randint(0, 2, (12,))
    x = torch.randn(12, 8) + y[:, None]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    torch.futures.wait_all(pending)
    pending.clear()
    optimizer.step()
dist.destroy_process_group()
