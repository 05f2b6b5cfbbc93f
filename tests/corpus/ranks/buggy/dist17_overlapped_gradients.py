"""Gradients are reduced while the next is prepared; the handles are kept under a name that nothing reads."""

import torch
import torch.distributed as dist
from torch import nn


class Averager:
    def __init__(self, module):
        self.module, self.world = module, dist.get_world_size()

    def reduce(self):
        for parameter in self.module.parameters():
            parameter.grad.div_(self.world)
            pending = dist.all_reduce(parameter.grad, async_op=True)  # expect: DIST17


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    averager = Averager(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for _ in range(6):
        y = torch.randint(0, 2, (12,))
        x = torch.randn(12, 8) + y[:, None]
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        averager.reduce()
        dist.barrier()
        optimizer.step()
    dist.destroy_process_group()


main()
