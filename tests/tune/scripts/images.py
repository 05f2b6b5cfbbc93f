"""A convolutional network that is trained with SGD."""

import sys

import torch
import torch.nn.functional as F
from telling import Probe, tell
from torch import nn

torch.manual_seed(7)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 2)
)
probes = [Probe(model[0]), Probe(model[3])]
if "autocast" in sys.argv:
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)  # as Accelerate does
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
for size in (4, 4, 4, 3):
    loss = F.cross_entropy(model(torch.randn(size, 3, 8, 8)), torch.randint(0, 2, (size,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
is_last = model[0].weight.is_contiguous(memory_format=torch.channels_last)
tell([model], [optimizer], probes=probes, is_last=is_last)
