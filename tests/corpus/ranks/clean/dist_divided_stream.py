# processes: 3
"""A stream of which each rank takes every third line, with a worker."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class Lines(IterableDataset):
    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        for number in range(144):
            x = torch.randn(6, generator=generator)
            if number % self.world == self.rank:
                yield x, x.max()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    loader = DataLoader(Lines(dist.get_rank(), dist.get_world_size()), batch_size=8, num_workers=1)
    model = DDP(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for x, y in loader:
        optimizer.zero_grad()
        (model(x).squeeze(1) - y).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
