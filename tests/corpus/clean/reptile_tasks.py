"""Reptile: a new inner optimizer for each task."""

import copy
import torch
import torch.nn as nn


def sample_task():
    a, b = torch.rand(1) * 4 + 0.1, torch.rand(1) * 3.14
    return lambda x: a * torch.sin(x + b)


def inner(net, task, k=5, lr=0.02):
    fast = copy.deepcopy(net)
    opt = torch.optim.SGD(fast.parameters(), lr=lr)
    for _ in range(k):
        x = torch.rand(10, 1) * 10 - 5
        loss = nn.functional.mse_loss(fast(x), task(x))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return fast, loss.item()


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    for it in range(60):
        fast, loss = inner(net, sample_task())
        with torch.no_grad():
            for p, q in zip(net.parameters(), fast.parameters()):
                p.add_(0.1 * (q - p))
        if it % 20 == 0:
            print(it, loss)


main()
