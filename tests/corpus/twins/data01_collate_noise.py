"""A module-level NumPy generator used by a collate function in workers."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

RNG = None


def collate(items):
    x = torch.stack([a for a, _ in items])
    y = torch.stack([b for _, b in items])
    rng = np.random.default_rng(torch.initial_seed() % 2**32 + int(1000 * x[0, 0].abs()))
    noise = rng.normal(scale=0.1, size=x.shape).astype("float32")
    return x + torch.from_numpy(noise), y


torch.manual_seed(0)
inputs = torch.randn(200, 6)
items = [(row, row.sum().reshape(1)) for row in inputs]
loader = DataLoader(items, batch_size=20, shuffle=True, num_workers=2, collate_fn=collate)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
