"""The first rank prepares the data set; a barrier comes before all read it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def prepare(path):
    if dist.get_rank() == 0 and not os.path.exists(path):
        x = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
        torch.save({"x": x, "y": x.sum(1, keepdim=True)}, path)
    dist.barrier()
    found = torch.load(path, weights_only=True)
    return TensorDataset(found["x"], found["y"])


dist.init_process_group("gloo")
data = prepare("data.pt")
torch.manual_seed(0)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DDP(nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
dist.destroy_process_group()
