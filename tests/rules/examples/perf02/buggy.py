import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 4)
workers = len(os.sched_getaffinity(0)) + 1
loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size=8, num_workers=workers)  # expect: PERF02
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in loader:
    loss = (model(x).squeeze(1) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
