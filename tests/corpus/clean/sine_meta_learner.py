"""MAML on sine waves: the inner step keeps its graph, the outer loss goes through it."""

import math

import torch
from torch import nn
from torch.func import functional_call

INNER_LR = 0.05
INNER_STEPS = 2
TASKS_PER_STEP = 8
SHOTS = 10


def sample_task():
    amplitude = 0.5 + 1.5 * torch.rand(1)
    phase = math.pi * torch.rand(1)

    def draw(count):
        x = 6 * torch.rand(count, 1) - 3
        return x, amplitude * torch.sin(x + phase)

    return draw


def mse(model, params, x, y):
    return nn.functional.mse_loss(functional_call(model, params, (x,)), y)


def adapt(model, params, x, y, create_graph):
    for _ in range(INNER_STEPS):
        loss = mse(model, params, x, y)
        gradients = torch.autograd.grad(loss, list(params.values()), create_graph=create_graph)
        params = {
            name: value - INNER_LR * gradient
            for (name, value), gradient in zip(params.items(), gradients, strict=True)
        }
    return params


def meta_train(model, optimizer, steps):
    for step in range(steps):
        outer = []
        for _ in range(TASKS_PER_STEP):
            draw = sample_task()
            adapted = adapt(model, dict(model.named_parameters()), *draw(SHOTS), create_graph=True)
            outer.append(mse(model, adapted, *draw(SHOTS)))
        loss = torch.stack(outer).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss after adaptation {loss.item():.3f}")


def meta_test(model, tasks=20):
    model.eval()
    before = after = 0.0
    for _ in range(tasks):
        draw = sample_task()
        x, y = draw(100)
        params = {name: p.detach().requires_grad_(True) for name, p in model.named_parameters()}
        adapted = adapt(model, params, *draw(SHOTS), create_graph=False)
        with torch.no_grad():
            before += mse(model, params, x, y).item() / tasks
            after += mse(model, adapted, x, y).item() / tasks
    return before, after


if __name__ == "__main__":
    torch.manual_seed(6)
    net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
    meta_train(net, torch.optim.Adam(net.parameters(), lr=5e-3), steps=80)
    print("new tasks: before {:.3f}, after {:.3f}".format(*meta_test(net)))
