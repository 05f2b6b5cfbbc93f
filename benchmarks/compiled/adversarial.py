"""A generator against a discriminator that looks at the spread of a batch."""

import torch
import torch.nn.functional as F
from torch import nn


class Spread(nn.Module):
    def forward(self, x):
        spread = x.std(dim=0).mean().expand(x.shape[0], 1)
        return torch.cat((x, spread), dim=1)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 16)
        self.spread = Spread()
        self.last = nn.Linear(17, 1)

    def forward(self, x):
        return self.last(self.spread(torch.tanh(self.first(x))))


torch.manual_seed(4)
generator = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
discriminator = Discriminator()
for_generator = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
for_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
for step in range(4):
    real = torch.randn(32, 2) * 0.5 + 2
    fake = generator(torch.randn(32, 4))
    loss = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake.detach())).mean()
    for_discriminator.zero_grad()
    loss.backward()
    for_discriminator.step()
    loss = F.softplus(-discriminator(fake)).mean()
    for_generator.zero_grad()
    loss.backward()
    for_generator.step()
