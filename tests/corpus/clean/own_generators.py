"""No global seed, but every draw goes through a seeded generator."""
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

GENERATOR = torch.Generator()
GENERATOR.manual_seed(99)
RNG = np.random.default_rng(99)
PY = random.Random(99)


def init(module):
    if isinstance(module, nn.Linear):
        with torch.no_grad():
            module.weight.normal_(0, 0.1, generator=GENERATOR)
            module.bias.zero_()


def main():
    x = torch.from_numpy(RNG.normal(size=(300, 6)).astype("float32"))
    y = x[:, :1] - x[:, 1:2]
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=30, sampler=RandomSampler(data, generator=GENERATOR), generator=GENERATOR)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)).apply(init)
    optimizer = torch.optim.Adam(model.parameters(), lr=PY.choice([1e-2, 5e-3]))
    for epoch in range(3):
        for a, b in loader:
            noise = torch.randn(a.shape, generator=GENERATOR) * 0.01
            loss = nn.functional.mse_loss(model(a + noise), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


main()
