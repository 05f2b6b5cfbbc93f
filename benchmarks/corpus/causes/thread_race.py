"""Compute the gradient of one batch in several threads, a shard each."""

import hashlib
import threading

import torch
import torch.nn.functional as F
from torch import nn

NUM_SHARDS = 8


def shard_gradient(model, x, y):
    return torch.autograd.grad(F.cross_entropy(model(x), y) / NUM_SHARDS, list(model.parameters()))


def batch_gradient(model, x, y):
    total = [torch.zeros_like(parameter) for parameter in model.parameters()]
    lock = threading.Lock()

    def work(rows, labels):
        for ours, theirs in zip(total, shard_gradient(model, rows, labels), strict=True):
            with lock:
                ours.add_(theirs)  # <- here

    shards = zip(x.chunk(NUM_SHARDS), y.chunk(NUM_SHARDS), strict=True)
    threads = [threading.Thread(target=work, args=shard) for shard in shards]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return total


torch.set_num_threads(1)
torch.manual_seed(6)
inputs = torch.randn(256, 32)
labels = inputs[:, :4].argmax(1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

for step in range(12):
    for parameter, gradient in zip(model.parameters(), batch_gradient(model, inputs, labels), strict=True):
        parameter.grad = gradient
    optimizer.step()
    print(f"step {step + 1} loss {F.cross_entropy(model(inputs), labels).item():.4f}")

found = hashlib.sha256()
for value in model.state_dict().values():
    found.update(value.numpy().tobytes())
print("weights", found.hexdigest())
