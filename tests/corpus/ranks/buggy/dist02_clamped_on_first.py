"""A critic with clamped weights; the clamp is under the condition that should only guard the log."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group(backend="gloo")
rank = dist.get_rank()
torch.manual_seed(11)
critic = DistributedDataParallel(nn.Sequential(nn.Linear(6, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)))
optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
torch.manual_seed(50 + rank)
for step in range(12):
    real = torch.randn(24, 6) + 1
    fake = torch.randn(24, 6)
    loss = critic(fake).mean() - critic(real).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # expect: DIST02
    if rank == 0:
        print(f"{step:3d} {-loss.item():.4f}")
        with torch.no_grad():
            for weight in critic.parameters():
                weight.clamp_(-0.05, 0.05)  # expect: DIST02
dist.destroy_process_group()
