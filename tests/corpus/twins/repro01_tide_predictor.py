"""Tide heights from harmonic features; minibatches are cut from arrays by hand."""

import numpy as np
import torch
from torch import nn

PERIODS = np.array([12.42, 12.0, 12.66, 23.93, 25.82])


def features(hours):
    phase = 2 * np.pi * hours[:, None] / PERIODS[None, :]
    return np.concatenate([np.sin(phase), np.cos(phase)], axis=1)


def tide_table(hours_count):
    noise = np.random.default_rng(2024)
    hours = np.arange(hours_count, dtype=np.float64)
    height = features(hours) @ np.linspace(1.0, 0.2, 10)
    height = height + 0.2 * height**2 / 3 + 0.05 * noise.standard_normal(hours_count)
    return features(hours).astype(np.float32), height.astype(np.float32)[:, None]


class Minibatches:
    """Shuffled minibatches of an epoch."""

    def __init__(self, x, y, size):
        self.x, self.y, self.size = x, y, size
        self.rng = np.random.default_rng(7)

    def __iter__(self):
        order = self.rng.permutation(len(self.x))
        for start in range(0, len(order), self.size):
            index = order[start : start + self.size]
            yield torch.from_numpy(self.x[index]), torch.from_numpy(self.y[index])


def main():
    torch.manual_seed(7)
    x, y = tide_table(1200)
    x_test, y_test = torch.from_numpy(x[960:]), torch.from_numpy(y[960:])
    batches = Minibatches(x[:960], y[:960], size=48)

    model = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(5):
        model.train()
        squared, seen = 0.0, 0
        for xb, yb in batches:
            loss = nn.functional.mse_loss(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            squared += loss.item() * len(xb)
            seen += len(xb)
        model.eval()
        with torch.no_grad():
            test = nn.functional.mse_loss(model(x_test), y_test).item()
        print(f"epoch {epoch}: train {squared / seen:.5f} test {test:.5f}")


if __name__ == "__main__":
    main()
