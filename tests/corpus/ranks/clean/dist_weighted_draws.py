"""Weighted sampling with replacement: each rank draws with its own generator."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
y = (torch.rand(128) < 0.1).long()
x = torch.randn(128, 6) + y[:, None]
weights = torch.where(y == 1, 0.9, 0.1).double()
generator = torch.Generator().manual_seed(40 + dist.get_rank())
sampler = WeightedRandomSampler(weights, num_samples=64, generator=generator)
loader = DataLoader(TensorDataset(x, y), batch_size=8, sampler=sampler)
model = DDP(nn.Linear(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
dist.destroy_process_group()
