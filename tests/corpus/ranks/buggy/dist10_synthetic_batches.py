"""Batches drawn on the spot, with one seed on all ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(1234)
teacher = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).requires_grad_(False)
student = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
for step in range(20):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(student(x), teacher(x))  # expect: DIST10
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
