"""Physics-informed net: Adam first, then LBFGS with a closure."""

import torch
import torch.nn as nn

torch.manual_seed(0)
u = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
x = torch.linspace(0, 1, 40).unsqueeze(1).requires_grad_(True)


def residual():
    y = u(x)
    dy = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
    ddy = torch.autograd.grad(dy.sum(), x, create_graph=True)[0]
    inner = (ddy + 3.14159**2 * torch.sin(3.14159 * x)).pow(2).mean()
    edge = u(torch.zeros(1, 1)).pow(2).sum() + u(torch.ones(1, 1)).pow(2).sum()
    return inner + 10 * edge


adam = torch.optim.Adam(u.parameters(), lr=1e-2)
for step in range(40):
    adam.zero_grad()
    loss = residual()
    loss.backward()
    adam.step()
print("adam", loss.item())
lbfgs = torch.optim.LBFGS(u.parameters(), lr=1.0, max_iter=8, line_search_fn="strong_wolfe")


def closure():
    lbfgs.zero_grad()
    loss = residual()
    loss.backward()
    return loss


for step in range(4):
    print("lbfgs", step, lbfgs.step(closure).item())
