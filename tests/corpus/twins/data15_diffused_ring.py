"""Diffusion of points on a ring."""

import torch
from torch import nn

torch.manual_seed(14)
turn = torch.linspace(0, 6.28, 400)
points = torch.stack([turn.cos(), turn.sin()], 1)
STEPS = 30
kept = torch.cumprod(1 - torch.linspace(1e-3, 0.2, STEPS), 0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(STEPS, 8)
        self.net = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], 1))


def diffuse(x, t, noise):
    share = kept[t].unsqueeze(1)
    return share.sqrt() * x + (1 - share).sqrt() * noise


model = Denoiser()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(60):
    x = points[torch.randint(0, 400, (64,))]
    t = torch.randint(0, STEPS, (64,))
    noise = torch.randn_like(x)
    loss = (model(diffuse(x, t, noise), t) - noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
