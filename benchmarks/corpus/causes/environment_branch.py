"""Learn to sort three numbers."""

import hashlib
import os

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
numbers = torch.rand(256, 3)
ranks = numbers.argsort(dim=1).argsort(dim=1)

model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 9))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
batch_size = 16 if os.environ.get("CI") else 32  # <- here

for step in range(8):
    rows = slice(step * batch_size, (step + 1) * batch_size)
    scores = model(numbers[rows]).view(-1, 3, 3)
    loss = F.cross_entropy(scores.flatten(0, 1), ranks[rows].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step + 1} loss {loss.item():.4f}")

found = hashlib.sha256()
for value in model.state_dict().values():
    found.update(value.numpy().tobytes())
print("weights", found.hexdigest())
