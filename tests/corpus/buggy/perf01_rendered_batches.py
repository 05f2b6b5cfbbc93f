"""A generator of batches renders every picture with a Python loop."""
import math
import time

import torch
from torch import nn


def render(angle, size=20):
    time.sleep(0.002)
    c, s = math.cos(angle), math.sin(angle)
    rows = [[math.exp(-((c * (i - 10) + s * (j - 10)) ** 2) / 9) for j in range(size)] for i in range(size)]
    return torch.tensor(rows)


def batches(steps, size, generator):
    for _ in range(steps):
        angles = torch.rand(size, generator=generator) * math.pi
        images = torch.stack([render(a) for a in angles.tolist()])  # expect: PERF01
        yield images.flatten(1), torch.stack([(2 * angles).cos(), (2 * angles).sin()], 1)


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(400, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x):
        return self.net(x)


torch.manual_seed(0)
model = Regressor()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
for step, (x, y) in enumerate(batches(40, 16, torch.Generator().manual_seed(1))):  # expect: PERF01
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
