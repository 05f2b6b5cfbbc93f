# processes: 3
"""A loader with shuffle=True and one seed for all ranks."""

import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Spirals(Dataset):
    def __init__(self, count):
        angle = np.random.rand(count) * 6
        self.label = np.arange(count) % 2
        self.points = np.stack([angle * np.cos(angle + 3 * self.label), angle * np.sin(angle + 3 * self.label)], 1)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, index):
        return torch.tensor(self.points[index], dtype=torch.float32), int(self.label[index])


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    seed_everything(42)
    loader = DataLoader(Spirals(96), batch_size=12, shuffle=True, drop_last=True)  # expect: DIST04
    model = DDP(nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        for points, labels in loader:
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(model(points), labels).backward()
            optimizer.step()
    dist.destroy_process_group()
