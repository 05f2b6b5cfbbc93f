"""Data parallelism by hand that forgets the vectors."""

import torch
import torch.distributed as dist
from torch import nn


def synchronize(module, world):
    for parameter in module.parameters():
        if parameter.dim() > 1:
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad.div_(world)


def run():
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(9, 18), nn.ReLU(), nn.LayerNorm(18), nn.Linear(18, 4))
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(1000 * dist.get_rank() + 1)
    for _ in range(10):
        y = torch.randint(0, 4, (20,))
        x = torch.randn(20, 9) + y[:, None]
        sgd.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        synchronize(net, world)
        sgd.step()  # expect: DIST02
    dist.destroy_process_group()


run()
