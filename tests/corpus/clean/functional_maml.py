"""MAML with torch.func and an inner loop; second-order gradients."""

import torch
import torch.nn as nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))
outer = torch.optim.Adam(net.parameters(), lr=1e-2)


def task_loss(params, x, y):
    return nn.functional.mse_loss(functional_call(net, params, (x,)), y)


def adapted_loss(params, xs, ys, xq, yq):
    g = grad(task_loss)(params, xs, ys)
    fast = {k: p - 0.05 * g[k] for k, p in params.items()}
    return task_loss(fast, xq, yq)


for step in range(60):
    phase = torch.rand(8, 1, 1) * 3
    xs, xq = torch.rand(8, 10, 1) * 4 - 2, torch.rand(8, 10, 1) * 4 - 2
    params = dict(net.named_parameters())
    losses = vmap(adapted_loss, in_dims=(None, 0, 0, 0, 0))(
        params, xs, (xs + phase).sin(), xq, (xq + phase).sin()
    )
    loss = losses.mean()
    outer.zero_grad()
    loss.backward()
    outer.step()
    if step % 20 == 0:
        print(step, loss.item())
