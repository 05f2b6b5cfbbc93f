"""Handwritten digits and small networks that have learnt to read them, in a second or two."""

import copy
import functools

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

Batches = list[tuple[Tensor, Tensor]]


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    """Return 1797 images of shape [1, 8, 8] and their digits, in a fixed random order."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data.images, dtype=torch.float32)[order, None] / 16
    return images, torch.tensor(data.target)[order]


def held_out(size: int = 256) -> Batches:
    """Return the 797 images that are not trained on."""
    images, targets = digits()
    return list(zip(images[1000:].split(size), targets[1000:].split(size), strict=True))


def cnn() -> nn.Module:
    """Return a small convolutional network that was trained on the first 1000 images."""
    return copy.deepcopy(_trained("cnn"))


def mlp() -> nn.Module:
    """Return a network of linear layers that was trained on the first 1000 images."""
    return copy.deepcopy(_trained("mlp"))


@functools.cache
def _trained(kind: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(576, 10),
        )
        if kind == "mlp":
            model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        images, targets = (part[:1000] for part in digits())
        for _ in range(10):
            for at in torch.randperm(1000).split(50):
                optimizer.zero_grad()
                F.cross_entropy(model(images[at]), targets[at]).backward()
                optimizer.step()
        return model
