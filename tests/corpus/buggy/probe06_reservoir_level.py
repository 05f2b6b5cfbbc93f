"""Predict the level class of a reservoir from weather readings with a deep tanh network."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass(frozen=True)
class Settings:
    readings: int = 40
    width: int = 128
    depth: int = 3
    levels: int = 3
    batch_size: int = 32
    epochs: int = 4
    lr: float = 1e-3


class DeepTanh(nn.Module):
    def __init__(self, settings):
        super().__init__()
        widths = [settings.readings] + [settings.width] * settings.depth
        self.hidden = nn.ModuleList([nn.Linear(a, b) for a, b in zip(widths, widths[1:])])
        self.out = nn.Linear(settings.width, settings.levels)
        for layer in self.hidden:
            nn.init.normal_(layer.weight, mean=0.0, std=1.0)  # expect: PROBE06
            nn.init.zeros_(layer.bias)

    def forward(self, readings):
        h = readings
        for layer in self.hidden:
            h = torch.tanh(layer(h))  # expect: PROBE06
        return self.out(h)


def make_data(settings, count, generator, weights):
    readings = torch.randn(count, settings.readings, generator=generator)
    level = readings @ weights + 0.3 * torch.randn(count, generator=generator)
    return TensorDataset(readings, torch.bucketize(level, torch.tensor([-0.43, 0.43])))


def evaluate(model, loader):
    model.eval()
    hits = seen = 0
    with torch.no_grad():
        for readings, level in loader:
            hits += (model(readings).argmax(dim=1) == level).sum().item()
            seen += len(level)
    return hits / seen


def main(settings):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(21)
    weights = torch.randn(settings.readings, generator=generator) / settings.readings**0.5
    train_loader = DataLoader(
        make_data(settings, 960, generator, weights), batch_size=settings.batch_size, shuffle=True
    )
    test_loader = DataLoader(make_data(settings, 240, generator, weights), batch_size=120)

    model = DeepTanh(settings)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(settings.epochs):
        model.train()
        total = 0.0
        for readings, level in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(readings), level)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(level)
        print(f"epoch {epoch}: loss {total / 960:.4f}, accuracy {evaluate(model, test_loader):.3f}")


if __name__ == "__main__":
    main(Settings())
