"""Two workers that are always busy: each sample is counted in a file of its process, in the folder COUNTS."""

import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

counts = Path(os.environ["COUNTS"])


class Counted(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        with (counts / str(os.getpid())).open("a") as file:
            file.write("x")
        time.sleep(0.001)
        return torch.ones(4)


model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for batch in DataLoader(Counted(), batch_size=4, num_workers=2, prefetch_factor=50_000):
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
