"""What only some rounds of the loop make anew outlives the others."""

import copy

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        if step == 0:
            target, prototypes = copy.deepcopy(model), torch.zeros(2, 4)
        if step % 2 == 0:
            bank = model.weight.detach().clone()
        else:
            spare = bank + 1
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
        prototypes[step % 2] = model.weight.detach()[0]
        # plant 0-3: target.weight | prototypes
        # plant 1-1: spare
        # plant 0-0: bank


main()
