import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def error(model, x, y):
    model.eval()
    total = 0.0
    for inputs, targets in zip(x.split(32), y.split(32)):  # expect: MODE02
        total += (model(inputs) - targets).square().sum().item()
    model.train()
    return total / len(x)


for epoch in range(2):
    for inputs, targets in zip(x[:128].split(32), y[:128].split(32)):
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
    print(error(model, x[128:], y[128:]))
