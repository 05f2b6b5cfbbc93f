"""House prices, made up: ReduceLROnPlateau is stepped once per epoch with the validation loss; the
best weights are kept.
"""

import copy

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

SEED = 61


def make_houses(count):
    rng = np.random.default_rng(SEED)
    area = rng.uniform(40, 220, count)
    rooms = np.round(area / 30 + rng.normal(0, 0.7, count))
    age = rng.uniform(0, 90, count)
    distance = rng.exponential(6, count)
    price = 3.1 * area + 14 * rooms - 0.9 * age - 9 * np.log1p(distance) + rng.normal(0, 25, count)
    return np.column_stack([area, rooms, age, distance]), price[:, None]


def standardise(train, *others):
    mean, std = train.mean(axis=0), train.std(axis=0)
    return [torch.tensor((part - mean) / std, dtype=torch.float32) for part in (train, *others)]


class EarlyBest:
    """Remembers a copy of the weights with the lowest validation loss."""

    def __init__(self):
        self.loss, self.state, self.epoch = float("inf"), None, -1

    def offer(self, loss, model, epoch):
        if loss < self.loss:
            self.loss, self.state, self.epoch = loss, copy.deepcopy(model.state_dict()), epoch


def mean_loss(model, loader, criterion):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += criterion(model(x), y).item() * len(x)
    return total / len(loader.dataset)


def main():
    torch.manual_seed(SEED)
    features, price = make_houses(1200)
    x_train, x_val, x_test = standardise(features[:800], features[800:1000], features[1000:])
    y_train, y_val, y_test = standardise(price[:800], price[800:1000], price[1000:])
    train_loader = DataLoader(TensorDataset(x_train, y_train), batch_size=64, shuffle=True)
    val_loader = DataLoader(TensorDataset(x_val, y_val), batch_size=64)
    test_loader = DataLoader(TensorDataset(x_test, y_test), batch_size=64)

    model = nn.Sequential(nn.Linear(4, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.3, patience=1)
    criterion = nn.MSELoss()
    best = EarlyBest()
    for epoch in range(12):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        val_loss = mean_loss(model, val_loader, criterion)
        scheduler.step(val_loss)
        best.offer(val_loss, model, epoch)
        print(f"epoch {epoch}: validation {val_loss:.4f} lr {optimizer.param_groups[0]['lr']:.2e}")
    model.load_state_dict(best.state)
    print(f"best epoch {best.epoch}, test loss {mean_loss(model, test_loader, criterion):.4f}")


if __name__ == "__main__":
    main()
