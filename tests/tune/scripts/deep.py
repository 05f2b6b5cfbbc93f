"""A deep model whose activations are most of its memory."""

import torch
from telling import Probe, tell
from torch import nn

from truestep.base.memory import process_peak_bytes

torch.manual_seed(7)
torch.set_num_threads(1)
blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Tanh()) for _ in range(8)]
model = nn.Sequential(nn.Linear(64, 64), nn.Sequential(*blocks))
probe = Probe(blocks[0][0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(8192, 64)
for _ in range(2):  # what is imported for it is not activations
    model(x[:8]).sum().backward()
before = process_peak_bytes()
for _ in range(2):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
grown = process_peak_bytes() - before
tell([model], [optimizer], probes=[probe], grown=grown)
