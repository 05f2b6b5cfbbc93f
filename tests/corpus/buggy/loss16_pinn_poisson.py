import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Solution(nn.Module):
    """u(x, t) for the damped heat equation u_t = nu u_xx - u^3 + f with u = 0 at x = 0 and x = 1."""

    def __init__(self, width=32, depth=3):
        super().__init__()
        layers, d = [], 2
        for _ in range(depth):
            layers += [nn.Linear(d, width), nn.Tanh()]
            d = width
        self.net = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, x, t):
        return self.net(torch.cat([2 * x - 1, 2 * t - 1], 1))


NU = 0.1


def exact(x, t):
    return torch.exp(-t) * torch.sin(math.pi * x)


def source(x, t):
    u = exact(x, t)
    return -u + NU * math.pi ** 2 * u + u ** 3


def derivative(y, x, keep):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=keep, retain_graph=True)[0]  # expect: LOSS16


def residual(model, x, t):
    x.requires_grad_(True)
    t.requires_grad_(True)
    u = model(x, t)
    u_t = derivative(u, t, keep=True)
    u_x = derivative(u, x, keep=True)
    u_xx = derivative(u_x, x, keep=False)
    return u_t - NU * u_xx + u ** 3 - source(x.detach(), t.detach())


def conditions(model, n):
    x, t = torch.rand(n, 1), torch.rand(n, 1)
    start = (model(x, torch.zeros_like(x)) - exact(x, torch.zeros_like(x))).pow(2).mean()
    left = model(torch.zeros_like(t), t).pow(2).mean()
    right = model(torch.ones_like(t), t).pow(2).mean()
    return start + left + right


def main():
    model = Solution()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.StepLR(opt, 200, 0.5)
    for step in range(500):
        pde = residual(model, torch.rand(128, 1), torch.rand(128, 1)).pow(2).mean()
        bc = conditions(model, 64)
        loss = pde + 10 * bc
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 100 == 99:
            print(f"step {step + 1} residual {pde.item():.5f} conditions {bc.item():.5f}")
    x, t = torch.meshgrid(torch.linspace(0, 1, 40), torch.linspace(0, 1, 40), indexing="ij")
    x, t = x.reshape(-1, 1), t.reshape(-1, 1)
    with torch.no_grad():
        u = exact(x, t)
        err = ((model(x, t) - u).norm() / u.norm()).item()
    print(f"relative L2 error {err:.4f}")


if __name__ == "__main__":
    main()
