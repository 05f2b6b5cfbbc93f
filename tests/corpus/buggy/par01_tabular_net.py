"""Income regression from tabular features with a residual network of configurable depth."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class ResidualLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, 2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.second(torch.relu(self.first(self.norm(x))))


class TabularNet(nn.Module):
    def __init__(self, features, width, depth):
        super().__init__()
        self.inp = nn.Linear(features, width)
        self.layers = []  # expect: PAR01
        for _ in range(depth):
            self.layers.append(ResidualLayer(width))  # expect: PAR01
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x).squeeze(1)


def synthetic_incomes(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    y = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] - (x[:, 3] - 0.5).abs() + 0.1 * torch.randn(n, generator=g)
    return TensorDataset(x, y)


def rmse(model, loader):
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            total += nn.functional.mse_loss(model(x), y, reduction="sum").item()
            count += len(y)
    return (total / count) ** 0.5


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    torch.manual_seed(100)
    train_set, valid_set = random_split(synthetic_incomes(1280, seed=100), [1024, 256])
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
    valid_loader = DataLoader(valid_set, batch_size=256)
    model = TabularNet(12, args.width, args.depth)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: last loss {loss.item():.3f}  valid rmse {rmse(model, valid_loader):.3f}")


if __name__ == "__main__":
    main()
