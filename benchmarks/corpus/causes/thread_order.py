"""Fetch the parts of a dataset side by side, then train on them."""

import hashlib
import threading
import time

import torch
import torch.nn.functional as F
from torch import nn

NUM_PARTS = 16


def fetch(part):
    """Stand in for a download: every part takes about as long as the others."""
    time.sleep(0.02)
    x = torch.arange(12, dtype=torch.float32)[:, None] / 12 + part
    return torch.sin(x), torch.cos(3 * x)


def fetch_all():
    parts = {}

    def work(part):
        parts[part] = fetch(part)  # <- here

    threads = [threading.Thread(target=work, args=(part,)) for part in range(NUM_PARTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(parts.values())  # <- here


torch.set_num_threads(1)
torch.manual_seed(2)
batches = fetch_all()
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step in range(12):
    x, y = batches[step]
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step + 1} loss {loss.item():.4f}")

found = hashlib.sha256()
for value in model.state_dict().values():
    found.update(value.numpy().tobytes())
print("weights", found.hexdigest())
