import random

import numpy as np
import torch
from torch import nn

seed = random.randint(1, 10000)
print("seed", seed)
torch.manual_seed(seed)
order = np.random.default_rng(seed).permutation(32)
x = torch.randn(32, 4)[order]
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
