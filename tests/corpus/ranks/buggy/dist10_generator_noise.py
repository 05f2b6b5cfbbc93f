"""A small GAN: real data differs between ranks, the noise does not."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(8)
data = TensorDataset(torch.randn(96, 2) * 0.3 + 2)
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=12, sampler=sampler)
generator = DDP(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
critic = DDP(nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.9))
optimizer_c = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (real,) in loader:
        with torch.no_grad():
            fake = generator(torch.randn(len(real), 4))
        scores = critic(torch.cat([real, fake]))
        loss = nn.functional.softplus(-scores[: len(real)]).mean() + nn.functional.softplus(scores[len(real) :]).mean()
        optimizer_c.zero_grad()
        loss.backward()
        optimizer_c.step()
        for weight in critic.parameters():
            weight.requires_grad_(False)
        made = generator(torch.randn(len(real), 4))  # expect: DIST10
        loss = nn.functional.softplus(-critic.module(made)).mean()
        optimizer_g.zero_grad()
        loss.backward()
        optimizer_g.step()
        for weight in critic.parameters():
            weight.requires_grad_(True)
dist.destroy_process_group()
