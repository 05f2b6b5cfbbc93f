"""Train with a batch size that grows while it pays."""

import hashlib

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(1024, 20)
targets = inputs[:, :5].norm(dim=1, keepdim=True)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

batch_size, first = 32, 0
for step in range(12):
    x, y = inputs[first : first + batch_size], targets[first : first + batch_size]
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    first += batch_size
    print(f"step {step + 1} rows {batch_size} loss {loss.item():.4f}")
    if step < 4:
        batch_size = min(batch_size + 8, 64)

found = hashlib.sha256()
for value in model.state_dict().values():
    found.update(value.numpy().tobytes())
print("weights", found.hexdigest())
