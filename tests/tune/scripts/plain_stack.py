"""A plain nn.Sequential, with a smaller batch at the end."""

import torch
from telling import Probe, tell
from torch import nn

torch.manual_seed(7)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
probe = Probe(model[0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for size in (4, 4, 3):
    optimizer.zero_grad()
    model(torch.randn(size, 4)).square().mean().backward()
    optimizer.step()
tell([model], [optimizer], probes=[probe])
