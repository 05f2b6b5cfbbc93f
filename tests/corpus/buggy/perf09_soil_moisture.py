"""Soil moisture from radar backscatter, on all the devices of the machine."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MoistureNet(nn.Module):
    def __init__(self, channels=10, width=96):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(channels, width),
            nn.ReLU(),
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, radar):
        return self.layers(radar).squeeze(-1)


def fields(count, seed):
    generator = torch.Generator().manual_seed(seed)
    radar = torch.randn(count, 10, generator=generator)
    moisture = torch.tanh(radar[:, 0] + 0.5 * radar[:, 1]) + 0.3 * radar[:, 2] * radar[:, 3]
    return TensorDataset(radar, moisture + 0.05 * torch.randn(count, generator=generator))


def prepare(model):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device)
    return nn.DataParallel(model), device  # expect: PERF09


@torch.no_grad()
def rmse(model, loader, device):
    model.eval()
    squared, seen = 0.0, 0
    for radar, moisture in loader:
        error = model(radar.to(device)) - moisture.to(device)
        squared += error.pow(2).sum().item()
        seen += len(radar)
    return (squared / seen) ** 0.5


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    train_loader = DataLoader(fields(768, seed=1), batch_size=32, shuffle=True)
    test_loader = DataLoader(fields(192, seed=2), batch_size=192)
    model, device = prepare(MoistureNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.MSELoss()
    for epoch in range(args.epochs):
        model.train()
        for radar, moisture in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(radar.to(device)), moisture.to(device))
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}, RMSE {rmse(model, test_loader, device):.4f}")


if __name__ == "__main__":
    main()
