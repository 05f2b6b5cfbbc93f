"""Convolutions with batch normalisation, in a function; a copy of the best weights is kept."""

import copy

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    images, labels = torch.randn(8, 2, 5, 5), torch.randint(0, 2, (8,))
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2))
    frozen = nn.BatchNorm1d(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    best = copy.deepcopy(model.state_dict())
    for step in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        for name, value in model.state_dict().items():
            best[name] = value.clone()
        # plant 0-2: model[0].weight | model[1].weight
        # plant 0-2 large: model[1].running_mean | model[1].running_var
        # plant 0-2: frozen.running_mean | frozen.num_batches_tracked | best["1.running_var"] | best["4.weight"]
        # plant 0-2: images
        # plant 0-2 large: optimizer.state[model[4].weight]["momentum_buffer"]


main()
