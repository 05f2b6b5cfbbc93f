"""Scale the rows of a batch by a learned table, with a backward pass written by hand in NumPy."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

NUM_CHUNKS = 32


def column_sums(rows):
    return rows.sum(axis=0, dtype=np.float32)


class ScaleRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        total = np.zeros(scale.shape, dtype=np.float32)
        with ThreadPoolExecutor(NUM_CHUNKS) as pool:
            chunks = np.array_split((grad * x).numpy(), NUM_CHUNKS)
            waiting = [pool.submit(column_sums, rows) for rows in chunks]
            for future in waiting:
                total += future.result()
        return grad * scale, torch.from_numpy(total)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.linear = nn.Linear(64, 4)

    def forward(self, x):
        return self.linear(ScaleRows.apply(x, self.scale))


def digest(model):
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.numpy().tobytes())
    return found.hexdigest()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(8192, 64)
    labels = inputs[:, :4].argmax(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for step in range(10):
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step + 1} loss {loss.item():.4f}")
    print("weights", digest(model))


if __name__ == "__main__":
    main()
