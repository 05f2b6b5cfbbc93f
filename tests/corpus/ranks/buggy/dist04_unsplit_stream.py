"""A stream that every rank reads from its beginning."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class Log(IterableDataset):
    """Lines of a log, turned into numbers."""

    def __init__(self, lines):
        self.lines = lines

    def __iter__(self):
        generator = torch.Generator().manual_seed(9)
        for _ in range(self.lines):
            x = torch.randn(7, generator=generator)
            yield x, x.abs().sum()


dist.init_process_group("gloo")
torch.manual_seed(0)
loader = DataLoader(Log(80), batch_size=10)  # expect: DIST04
model = DistributedDataParallel(nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in loader:
    optimizer.zero_grad()
    loss = (model(x).squeeze(1) - y).abs().mean()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
