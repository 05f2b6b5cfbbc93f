"""Tag songs with several genres at once."""

from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class Config:
    features: int = 60
    tags: int = 8
    songs: int = 800
    held_out: int = 200
    hidden: tuple = (96, 48)
    batch_size: int = 40
    epochs: int = 4
    lr: float = 2e-3
    seed: int = 13


@dataclass
class History:
    losses: list = field(default_factory=list)
    scores: list = field(default_factory=list)


def songs(cfg):
    generator = torch.Generator().manual_seed(cfg.seed)
    count = cfg.songs + cfg.held_out
    features = torch.randn(count, cfg.features, generator=generator)
    directions = torch.randn(cfg.features, cfg.tags, generator=generator) / cfg.features**0.5
    tags = (features @ directions + 0.2 * torch.randn(count, cfg.tags, generator=generator) > 0.4).float()
    return (features[: cfg.songs], tags[: cfg.songs]), (features[cfg.songs :], tags[cfg.songs :])


def build_tagger(cfg):
    layers, width = [], cfg.features
    for hidden in cfg.hidden:
        layers += [nn.Linear(width, hidden), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, cfg.tags))


def tag_loss(output, tags):
    """Binary cross entropy, kept away from the logarithm of zero."""
    probability = output.clamp(1e-6, 1 - 1e-6)  # expect: LOSS02
    return nn.functional.binary_cross_entropy(probability, tags)  # expect: LOSS02


def f1(model, features, tags):
    model.eval()
    with torch.no_grad():
        guess = (model(features) > 0.5).float()
    return (2 * (guess * tags).sum() / (guess.sum() + tags.sum())).item()


def fit(cfg):
    torch.manual_seed(cfg.seed)
    (features, tags), test = songs(cfg)
    model = build_tagger(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    history = History()
    for _ in range(cfg.epochs):
        model.train()
        for index in torch.randperm(cfg.songs).split(cfg.batch_size):
            loss = tag_loss(model(features[index]), tags[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.losses.append(loss.item())
        history.scores.append(f1(model, *test))
    return history


if __name__ == "__main__":
    history = fit(Config())
    print(f"loss {history.losses[0]:.3f} -> {history.losses[-1]:.3f}")
    print("F1 after each epoch:", " ".join(f"{score:.3f}" for score in history.scores))
