"""A closure that runs several times in a step, and a second optimizer that does not count."""

import torch
from torch import nn

torch.manual_seed(0)
model, other = nn.Linear(3, 1), nn.Linear(3, 1)
lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
sgd = torch.optim.SGD(other.parameters(), lr=0.1)
x = torch.randn(8, 3)


def closure():
    lbfgs.zero_grad()  # -> GradientsZeroed
    loss = model(x).square().mean()  # -> ForwardPass
    loss.backward()  # -> BackwardPass
    return loss


for _ in range(3):
    lbfgs.step(closure)  # -> OptimizerStep
    other.zero_grad()  # -> GradientsZeroed
    other(x).square().mean().backward()  # -> ForwardPass BackwardPass
    sgd.step()  # -> OptimizerStep
print("digest", [float(value.sum()).hex() for value in model.state_dict().values()])
