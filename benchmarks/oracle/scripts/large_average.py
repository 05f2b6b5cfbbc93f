"""An average of weights with many elements, changed through `.data` alone, in a function."""

import copy

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Linear(512, 520)
    average = copy.deepcopy(model)
    table = torch.zeros(600, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(2, 512)).square().mean().backward()
        optimizer.step()
        for mine, item in zip(average.parameters(), model.parameters(), strict=True):
            mine.data.mul_(0.9).add_(item.data, alpha=0.1)
        # plant 0-1: average.weight | average.bias | table | model.weight


main()
