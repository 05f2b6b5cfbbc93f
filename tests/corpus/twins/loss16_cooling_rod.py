"""A network that solves the heat equation of a rod, by the residual of the equation at random places."""

import torch
from torch import nn

torch.manual_seed(11)


class Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([x, t], 1))


def slope(of: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(of.sum(), by, create_graph=True)[0]


def residual(model: nn.Module, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    x, t = x.requires_grad_(), t.requires_grad_()
    u = model(x, t)
    u_x = slope(u, x)
    u_xx = torch.autograd.grad(u_x.sum(), x, create_graph=True)[0]
    return slope(u, t) - 0.1 * u_xx


model = Temperature()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(40):
    x, t = torch.rand(64, 1), torch.rand(64, 1)
    start = (model(x, torch.zeros_like(x)) - torch.sin(torch.pi * x)).square().mean()
    ends = model(x.round(), t).square().mean()
    loss = residual(model, x.clone(), t.clone()).square().mean() + 5 * (start + ends)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
