"""Training data is split over ranks; every rank validates on all of the held-out data."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(96, 6)
train, valid = random_split(TensorDataset(x, x.std(1, keepdim=True)), [64, 32])
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=8, sampler=sampler)
held_out = DataLoader(valid, batch_size=16)
model = DDP(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        total = sum(nn.functional.mse_loss(model(a), b, reduction="sum").item() for a, b in held_out)
    model.train()
    scheduler.step(total / len(valid))
dist.destroy_process_group()
