"""MAML on sine waves in functional style; every task draws its own support and query."""
import math

import torch
from torch import nn
from torch.func import functional_call, grad, vmap


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x)


def tasks(n, k, g):
    amp = torch.rand(n, 1, 1, generator=g) * 2 + 0.5
    phase = torch.rand(n, 1, 1, generator=g) * math.pi
    x = torch.rand(n, 2 * k, 1, generator=g) * 6 - 3
    y = amp * torch.sin(x + phase)
    return x[:, :k], y[:, :k], x[:, k:], y[:, k:]


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    model = Net()
    params = dict(model.named_parameters())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(p, x, y):
        return ((functional_call(model, p, (x,)) - y) ** 2).mean()

    def adapted_loss(p, xs, ys, xq, yq, lr=0.05):
        inner = grad(loss_of)(p, xs, ys)
        fast = {k: v - lr * inner[k] for k, v in p.items()}
        return loss_of(fast, xq, yq)

    for step in range(40):
        xs, ys, xq, yq = tasks(8, 10, g)
        loss = vmap(adapted_loss, in_dims=(None, 0, 0, 0, 0))(params, xs, ys, xq, yq).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(step, loss.item())


main()
