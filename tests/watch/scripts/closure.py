"""A closure that runs several times in a step, and a second optimizer that does not count."""

import torch
from torch import nn

torch.manual_seed(0)
model, other = nn.Linear(3, 1), nn.Linear(3, 1)
lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
sgd = torch.optim.SGD(other.parameters(), lr=0.1)
x = torch.randn(8, 3)


def closure():
    lbfgs.zero_grad()  # -> zero_grad
    loss = model(x).square().mean()  # -> forward
    loss.backward()  # -> backward
    return loss


for _ in range(3):
    lbfgs.step(closure)  # -> step
    other.zero_grad()  # -> zero_grad
    other(x).square().mean().backward()  # -> forward backward
    sgd.step()  # -> step
print("digest", [float(value.sum()).hex() for value in model.state_dict().values()])
