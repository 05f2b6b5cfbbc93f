"""A global batch of eight on four ranks, and BatchNorm on two samples."""
# processes: 4

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

GLOBAL_BATCH = 8

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(80, 12)
data = TensorDataset(x, (x[:, :3].sum(1) > 0).long())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=GLOBAL_BATCH // dist.get_world_size(), sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(1):
    sampler.set_epoch(epoch)
    for a, b in loader:
        logits = model(a)  # expect: DIST14
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, b).backward()
        optimizer.step()
dist.destroy_process_group()
