"""A GAN with other noise on each rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
generator = DDP(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
critic = DDP(nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3)
optimizer_c = torch.optim.Adam(critic.parameters(), lr=2e-3)
torch.manual_seed(1 + dist.get_rank())
for _ in range(12):
    real = torch.randn(16, 2) + 1
    with torch.no_grad():
        fake = generator(torch.randn(16, 4))
    scores = critic(torch.cat([real, fake]))
    loss = nn.functional.softplus(-scores[:16]).mean() + nn.functional.softplus(scores[16:]).mean()
    optimizer_c.zero_grad()
    loss.backward()
    optimizer_c.step()
    critic.requires_grad_(False)
    loss = nn.functional.softplus(-critic.module(generator(torch.randn(16, 4)))).mean()
    optimizer_g.zero_grad()
    loss.backward()
    optimizer_g.step()
    critic.requires_grad_(True)
dist.destroy_process_group()
