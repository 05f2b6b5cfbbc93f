"""A two-layer network trained by updates written by hand: no optimizer object, gradients set to None
after use.
"""

import math

import torch
from torch import nn

torch.manual_seed(8)

LR = 0.05
MOMENTUM = 0.9
BATCH = 40

x = torch.randn(1000, 6)
true_w = torch.tensor([1.0, -2.0, 0.5, 0.0, 1.5, -0.7])
y = torch.tanh(x @ true_w).unsqueeze(1) + 0.05 * torch.randn(1000, 1)
x_train, y_train = x[:800], y[:800]
x_test, y_test = x[800:], y[800:]

w1 = nn.Parameter(torch.randn(6, 24) / math.sqrt(6))
b1 = nn.Parameter(torch.zeros(24))
w2 = nn.Parameter(torch.randn(24, 1) / math.sqrt(24))
b2 = nn.Parameter(torch.zeros(1))
params = [w1, b1, w2, b2]
velocity = [torch.zeros_like(p) for p in params]


def predict(inputs):
    return torch.tanh(inputs @ w1 + b1) @ w2 + b2


def update():
    with torch.no_grad():
        for p, v in zip(params, velocity, strict=True):
            v.mul_(MOMENTUM).add_(p.grad)
            p -= LR * v  # noqa: PLW2901
            p.grad = None


for epoch in range(8):
    permutation = torch.randperm(len(x_train))
    epoch_loss = 0.0
    for start in range(0, len(x_train), BATCH):
        rows = permutation[start : start + BATCH]
        loss = ((predict(x_train[rows]) - y_train[rows]) ** 2).mean()
        loss.backward()
        update()
        epoch_loss += loss.item() * len(rows)
    with torch.no_grad():
        test_loss = ((predict(x_test) - y_test) ** 2).mean().item()
    print(f"epoch {epoch}: train {epoch_loss / len(x_train):.4f} test {test_loss:.4f}")
