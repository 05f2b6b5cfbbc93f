"""A script that waits for its data: `__getitem__` waits (--sleep S)."""

import argparse
import time

import torch
import torch.nn.functional as F
from ranges import Ranges
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--profiler")
options = parser.parse_args()


class Slow(Dataset):
    def __len__(self) -> int:
        return 16 * 400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(options.sleep)
        return torch.full((64,), float(index % 7)), index % 10


part = Ranges()
loader = DataLoader(Slow(), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in part.batches(loader):
    with part("optimizer"):
        optimizer.zero_grad()
    with part("forward"):
        loss = F.cross_entropy(model(x), y)
    with part("backward"):
        loss.backward()
    with part("optimizer"):
        optimizer.step()
    part.end_step()
