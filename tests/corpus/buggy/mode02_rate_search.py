"""A search for the learning rate: a small model for each."""
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(20, 64), nn.Dropout(0.2), nn.Linear(64, 3)

    def forward(self, x):
        return self.b(self.drop(F.relu(self.a(x))))


def accuracy(model, x, y):
    was = model.training
    model.eval()
    right = 0
    for xb, yb in zip(x.split(50), y.split(50)):  # expect: MODE02
        right += int((model(xb).argmax(1) == yb).sum())
    model.train(was)
    return right / len(y)


def search(rates):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(300, 20, generator=g)
    y = x[:, :3].argmax(1)
    results = {}
    for lr in rates:
        torch.manual_seed(1)
        model = Net()
        opt = torch.optim.Adam(model.parameters(), lr=lr)
        for epoch in range(2):
            for idx in torch.randperm(200).split(20):
                loss = F.cross_entropy(model(x[idx]), y[idx])
                opt.zero_grad()
                loss.backward()
                opt.step()
        results[lr] = accuracy(model, x[200:], y[200:])
    return results


print(search([1e-3, 3e-3, 1e-2]))
