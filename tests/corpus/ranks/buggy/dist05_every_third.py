# processes: 3
"""Samples are dealt out by hand, and the last batches do not come out even."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(49, 6)
data = TensorDataset(x, x.norm(dim=1))
own = Subset(data, range(rank, len(data), world))
loader = DataLoader(own, batch_size=4, shuffle=True)  # expect: DIST05
model = DDP(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for epoch in range(2):
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.l1_loss(model(a).squeeze(1), b).backward()
        optimizer.step()
dist.barrier()
dist.destroy_process_group()
