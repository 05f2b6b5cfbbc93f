"""A normalizing flow: couplings with clamped scales."""

import torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x):
        still, moved = x.chunk(2, dim=1)
        shift, log_scale = self.net(still).chunk(2, dim=1)
        log_scale = log_scale.clamp(-0.3, 0.3)
        return torch.cat((moved * log_scale.exp() + shift, still), dim=1), log_scale.sum(1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.couplings = nn.ModuleList([Coupling() for _ in range(2)])

    def forward(self, x):
        total = 0.0
        for coupling in self.couplings:
            x, log_det = coupling(x)
            total = total + log_det
        return x, total


torch.manual_seed(17)
model = Flow()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.randn(40, 4) * torch.tensor([1.0, 2.0, 0.5, 1.5])
for step in range(4):
    z, log_det = model(data)
    loss = (0.5 * z.square().sum(1) - log_det).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
