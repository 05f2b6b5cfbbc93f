"""Metrics kept in a history object."""

import torch
from torch import nn
from collections import defaultdict


class History:
    def __init__(self):
        self.values = defaultdict(list)

    def log(self, **scalars):
        for k, v in scalars.items():
            self.values[k].append(v)

    def mean(self, key):
        return sum(float(v) for v in self.values[key]) / len(self.values[key])


def train(model, opt, batches, history):
    model.train()
    for x, y in batches:
        out = model(x)
        ce = nn.functional.cross_entropy(out, y)
        reg = 1e-3 * sum(p.pow(2).sum() for p in model.parameters())
        loss = ce + reg
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.log(loss=loss.item(), ce=ce.item())


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    w = torch.randn(10, 4)
    xs = torch.randn(25, 16, 10)
    batches = [(x, (x @ w).argmax(1)) for x in xs]
    history = History()
    for epoch in range(3):
        train(model, opt, batches, history)
        print(epoch, history.mean("loss"), history.mean("ce"))


main()
