"""Noise in many roles: a target with noise of its own, matched codes, a flow, and noise kept for later."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(15)
turn = torch.linspace(0, 6.28, 400)
points = torch.stack([turn.cos(), turn.sin()], 1)
model = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 2))
flow = nn.Sequential(nn.Linear(3, 32), nn.SiLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam([*model.parameters(), *flow.parameters()], lr=2e-3)
kept, distances = [], []
for step in range(48):
    x = points[torch.randint(0, 400, (64,))]
    to_noise = F.mse_loss(model(x + 0.1 * torch.randn_like(x)), x + 0.1 * torch.randn_like(x))
    codes, prior = model(x + 0.1 * torch.randn_like(x)), torch.randn_like(x)
    matched = (codes.sort(0).values - prior.sort(0).values).square().mean()
    start, t = torch.randn_like(x), torch.rand(64, 1)
    velocity = F.mse_loss(flow(torch.cat([(1 - t) * start + t * x, t], 1)), x - start)
    shaken = x + 0.1 * torch.randn_like(x)
    kept.append(shaken)
    shown = x + 0.1 * torch.randn_like(x)
    distances.append(sum(shown[0].tolist()))
    loss = to_noise + 0.1 * matched + velocity + F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(torch.cat(kept).std(), sum(distances))
