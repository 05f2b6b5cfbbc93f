"""A small model whose steps mostly wait, PAUSE_S. Arguments: steps, and the one at which it fails."""

import sys
import time
from pathlib import Path

import torch
from torch import nn

PAUSE_S = 0.004
NUM_STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
FAILS_AT = int(sys.argv[2]) if len(sys.argv) > 2 else -1

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(256, 8)
targets = inputs[:, :1] * 2 - inputs[:, 1:2]

for step in range(NUM_STEPS):
    if step == FAILS_AT:
        raise ValueError("planted failure")
    rows = torch.randint(0, 256, (32,))
    loss = nn.functional.mse_loss(model(inputs[rows]), targets[rows])
    optimizer.zero_grad()
    loss.backward()
    time.sleep(PAUSE_S)
    optimizer.step()
Path("result.txt").write_text("done")
