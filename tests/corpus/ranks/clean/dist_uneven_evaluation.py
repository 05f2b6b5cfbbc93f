"""Validation parts of different lengths; sums and counts are reduced at the end."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(85, 5)
data = TensorDataset(x, (x.sum(1) > 0).long())
train, valid = Subset(data, range(64)), Subset(data, range(64, 85))
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=8, sampler=sampler)
own = DataLoader(Subset(valid, range(rank, len(valid), world)), batch_size=2)
model = DDP(nn.Linear(5, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    model.eval()
    counts = torch.zeros(2)
    with torch.no_grad():
        for a, b in own:
            counts += torch.tensor([(model.module(a).argmax(1) == b).sum(), len(b)])
    dist.all_reduce(counts)
    model.train()
dist.destroy_process_group()
