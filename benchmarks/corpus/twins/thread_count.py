"""Compress random patterns through a narrow layer and back."""

import hashlib

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
patterns = torch.rand(512, 128)
model = nn.Sequential(nn.Linear(128, 96), nn.LayerNorm(96), nn.ReLU(), nn.Linear(96, 128), nn.Sigmoid())
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

for step in range(6):
    optimizer.zero_grad()
    loss = F.binary_cross_entropy(model(patterns), patterns)
    loss.backward()
    optimizer.step()
    print(f"step {step + 1} loss {loss.item():.4f}")

found = hashlib.sha256()
for value in model.state_dict().values():
    found.update(value.numpy().tobytes())
print("weights", found.hexdigest())
