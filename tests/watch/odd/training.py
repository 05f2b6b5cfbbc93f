"""A small model, its batches and a loop: what most of the odd scripts share."""

import hashlib

import torch
from torch import nn


def batches(num: int = 9, size: int = 8):
    generator = torch.Generator().manual_seed(5)
    for _ in range(num):
        yield torch.randn(size, 4, generator=generator), torch.randint(0, 3, (size,), generator=generator)


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))


def train(model, *, optimizer=None, num=9, given=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches(num) if given is None else given:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return optimizer


def digest(*modules) -> str:
    found = hashlib.sha256()
    for module in modules:
        for name, item in module.state_dict().items():
            found.update(name.encode() + item.detach().numpy().tobytes())
    return found.hexdigest()[:16]
