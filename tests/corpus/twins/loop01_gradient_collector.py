"""Regression of robot joint torques; micro-batches are collected into one update."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class TorqueData(Dataset):
    def __init__(self, n, generator):
        self.angles = torch.rand(n, 6, generator=generator) * 2 - 1
        speed = torch.randn(n, 6, generator=generator)
        self.inputs = torch.cat([self.angles, speed], dim=1)
        gravity = torch.cos(2 * self.angles).cumsum(dim=1) / 3
        self.torques = gravity + 0.3 * speed * self.angles.roll(1, dims=1)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        return self.inputs[i], self.torques[i]


class TorqueNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(12, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 6)
        )

    def forward(self, x):
        return self.net(x)


class Accumulator:
    """Steps the optimizer once for every `every` backward passes."""

    def __init__(self, optimizer, every):
        self.optimizer, self.every, self.seen = optimizer, every, 0

    def backward(self, loss):
        (loss / self.every).backward()
        self.seen += 1
        if self.seen == self.every:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.seen = 0


def validate(model, loader):
    model.eval()
    squared, count = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            squared += (model(x) - y).square().sum().item()
            count += y.numel()
    return (squared / count) ** 0.5


def main():
    torch.manual_seed(70)
    generator = torch.Generator().manual_seed(70)
    train_loader = DataLoader(TorqueData(1024, generator), batch_size=32, shuffle=True)
    valid_loader = DataLoader(TorqueData(256, generator), batch_size=256)
    model = TorqueNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    accumulator = Accumulator(optimizer, every=4)
    criterion = nn.MSELoss()
    for epoch in range(8):
        model.train()
        total = 0.0
        for x, y in train_loader:
            loss = criterion(model(x), y)
            accumulator.backward(loss)
            total += loss.item()
        print(
            f"epoch {epoch}: loss {total / len(train_loader):.4f}  rmse {validate(model, valid_loader):.4f}"
        )


if __name__ == "__main__":
    main()
