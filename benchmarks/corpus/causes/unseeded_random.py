"""Learn the parity of short bit strings, visited in another order each epoch."""

import hashlib
import random

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(1)

numbers = torch.arange(64)
bits = (numbers[:, None] >> torch.arange(6)) & 1
inputs, targets = bits.float() * 2 - 1, bits.sum(1) % 2

model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)

order = list(range(64))
for epoch in range(3):
    random.shuffle(order)  # <- here
    for start in range(0, 64, 16):
        rows = order[start : start + 16]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[rows]), targets[rows])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1} loss {loss.item():.4f}")

found = hashlib.sha256()
for value in model.state_dict().values():
    found.update(value.numpy().tobytes())
print("weights", found.hexdigest())
