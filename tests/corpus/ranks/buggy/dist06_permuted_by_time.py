"""Indices are permuted with a generator that nobody seeds."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
features = torch.randn(64, 5)
data = TensorDataset(features, features.prod(1, keepdim=True))
order = np.random.default_rng(rank).permutation(len(data)).tolist()  # expect: DIST06
train, test = order[:48], order[48:]
loader = DataLoader(Subset(data, train[rank::world]), batch_size=6, shuffle=True)
tests = DataLoader(Subset(data, test), batch_size=8)
model = DDP(nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        error = sum(nn.functional.mse_loss(model(x), y, reduction="sum") for x, y in tests) / len(test)
    dist.all_reduce(error)
    model.train()
dist.destroy_process_group()
