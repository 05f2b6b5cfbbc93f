"""Tell two spirals apart with a small network."""

import hashlib

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

turns = torch.linspace(0.2, 3.0, 96)
spiral = torch.stack([turns * torch.cos(4 * turns), turns * torch.sin(4 * turns)], dim=1)
points = torch.cat([spiral, -spiral])
labels = torch.cat([torch.zeros(96), torch.ones(96)]).long()

model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for step in range(10):
    loss = F.cross_entropy(model(points), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step + 1} loss {loss.item():.4f}")

found = hashlib.sha256()
for value in model.state_dict().values():
    found.update(value.numpy().tobytes())
print("weights", found.hexdigest())
