"""Train one small model after another; each is gone before the next one is made."""

import torch
from torch import nn

torch.manual_seed(0)
for number in range(40):
    model = nn.Sequential(nn.Linear(3, 2 + number % 3), nn.Linear(2 + number % 3, 1))
    weights = list(model.parameters())
    if number % 2:  # the optimizer steps before the model was ever called: its parameters have no names yet
        model = None
    optimizer = torch.optim.SGD(weights, lr=0.1)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    if model is not None:
        model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
