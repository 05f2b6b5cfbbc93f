"""Physics-informed fit of a damped oscillator with LBFGS: the closure runs several times per step."""

import torch
from torch import nn

torch.manual_seed(13)

DAMPING, STIFFNESS = 0.4, 4.0


class Displacement(nn.Module):
    """u(t) with u(0) = 1 and u'(0) = 0 built in."""

    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, t):
        return 1 + t**2 * self.net(t)


def residual(model, t):
    u = model(t)
    (du,) = torch.autograd.grad(u.sum(), t, create_graph=True)
    (ddu,) = torch.autograd.grad(du.sum(), t, create_graph=True)
    return ddu + DAMPING * du + STIFFNESS * u


def exact(t):
    gamma = DAMPING / 2
    omega = (STIFFNESS - gamma**2) ** 0.5
    return torch.exp(-gamma * t) * (torch.cos(omega * t) + gamma / omega * torch.sin(omega * t))


model = Displacement()
optimizer = torch.optim.LBFGS(
    model.parameters(), lr=1.0, max_iter=10, history_size=20, line_search_fn="strong_wolfe"
)
times = torch.linspace(0, 2, 64).unsqueeze(1).requires_grad_(True)
evaluations = 0


def closure():
    global evaluations  # noqa: PLW0603
    evaluations += 1
    optimizer.zero_grad()
    loss = residual(model, times).pow(2).mean()
    loss.backward(inputs=list(model.parameters()))
    return loss


for step in range(20):
    loss = optimizer.step(closure)
    if step % 4 == 0:
        print(f"step {step}: loss {loss.item():.5f} after {evaluations} evaluations")

grid = torch.linspace(0, 2, 101).unsqueeze(1)
model.eval()
with torch.no_grad():
    error = (model(grid) - exact(grid)).abs().max().item()
print(f"largest error {error:.4f}")
