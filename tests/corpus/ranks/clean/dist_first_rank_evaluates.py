"""The first rank evaluates and saves while the others wait."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(96, 5)
y = (x[:, 0] * x[:, 1] > 0).long()
train, test = TensorDataset(x[:64], y[:64]), TensorDataset(x[64:], y[64:])
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=8, sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(5, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 2)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    model.train()
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    if rank == 0:
        model.eval()
        with torch.no_grad():
            right = sum((model.module(a).argmax(1) == b).sum() for a, b in DataLoader(test, batch_size=16))
        print(epoch, int(right) / len(test))
        torch.save(model.module.state_dict(), f"epoch-{epoch}.pt")
    dist.barrier()
dist.destroy_process_group()
