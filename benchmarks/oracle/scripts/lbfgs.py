"""A closure that the optimizer calls; the gradients' trace is kept outside of it."""

import torch
from torch import nn

torch.manual_seed(0)
data = torch.randn(8, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3, history_size=4)
trace = {"weight": torch.zeros(1, 4), "calls": torch.zeros(2)}


def closure():
    optimizer.zero_grad()
    loss = (model(data) - 1).square().mean()
    loss.backward()
    trace["weight"] += model.weight.grad
    trace["calls"] += 1
    return loss


for step in range(3):
    optimizer.step(closure)
    # plant 0-2: trace["weight"] | trace["calls"] | model.weight | data
    # plant 0-2: optimizer.state[model.weight]["d"] | optimizer.state[model.weight]["old_dirs"][-1]
