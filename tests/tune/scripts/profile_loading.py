"""A script that waits for its data: `__getitem__` waits (--sleep S), or computes (--work N)."""

import argparse
import time

import torch
import torch.nn.functional as F
from ranges import Ranges
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--work", type=int, default=0)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--profiler")
options = parser.parse_args()


class Slow(Dataset):
    def __len__(self) -> int:
        return 16 * 400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if options.sleep:
            time.sleep(options.sleep)
        x = torch.full((64,), float(index % 7))
        for _ in range(options.work):
            x = x.sort().values + 1e-3
        return x, index % 10


part = Ranges()
loader = DataLoader(Slow(), batch_size=16, shuffle=True, num_workers=options.workers)
model = nn.Sequential(
    nn.Linear(64, options.width),
    nn.ReLU(),
    nn.Linear(options.width, options.width),
    nn.Linear(options.width, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in part.batches(loader) if options.profiler else loader:
    with part("optimizer"):
        optimizer.zero_grad()
    with part("forward"):
        loss = F.cross_entropy(model(x), y)
    with part("backward"):
        loss.backward()
    with part("optimizer"):
        optimizer.step()
    part.end_step()
