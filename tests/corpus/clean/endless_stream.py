"""An endless shuffled stream, read by steps."""
import itertools
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Endless(IterableDataset):
    def __init__(self, rows, seed):
        self.rows, self.seed = rows, seed

    def __iter__(self):
        info = get_worker_info()
        rng = random.Random(self.seed + (info.id if info else 0))
        while True:
            order = list(range(len(self.rows)))
            rng.shuffle(order)
            for i in order:
                yield self.rows[i], self.rows[i].norm().reshape(1)


torch.manual_seed(0)
rows = torch.randn(2000, 5)
loader = DataLoader(Endless(rows, 3), batch_size=16, num_workers=2)
model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
stream = iter(loader)
for step in range(60):
    x, y = next(stream)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item())
