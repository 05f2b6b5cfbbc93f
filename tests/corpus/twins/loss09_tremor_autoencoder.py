"""Autoencoder for seismic traces; the reconstruction error is the anomaly score."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LENGTH = 64


def traces(count, generator, strong=False):
    t = torch.linspace(0, 1, LENGTH)
    frequency = 2 + 6 * torch.rand(count, 1, generator=generator)
    decay = 2 + 3 * torch.rand(count, 1, generator=generator)
    signal = torch.exp(-decay * t) * torch.sin(6.283 * frequency * t)
    if strong:
        signal = 4 * signal
    return signal + 0.05 * torch.randn(count, LENGTH, generator=generator)


class Autoencoder(nn.Module):
    def __init__(self, code=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(LENGTH, 64), nn.ReLU(), nn.Linear(64, code))
        self.decoder = nn.Sequential(nn.Linear(code, 64), nn.ReLU(), nn.Linear(64, LENGTH))

    def forward(self, trace):
        return self.decoder(self.encoder(trace))


def train_epoch(model, loader, optimizer, criterion):
    model.train()
    total, seen = 0.0, 0
    for (trace,) in loader:
        loss = criterion(model(trace), trace)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(trace)
        seen += len(trace)
    return total / seen


@torch.no_grad()
def evaluate(model, loader, criterion):
    model.eval()
    total = 0.0
    seen = 0
    for (trace,) in loader:
        total += criterion(model(trace), trace).item() * len(trace)
        seen += len(trace)
    return total / seen


def main():
    torch.manual_seed(9)
    generator = torch.Generator().manual_seed(9)
    train_set = TensorDataset(traces(512, generator))
    # the quiet station's records, then the few from the station near the fault
    quiet, near = traces(128, generator), traces(6, generator, strong=True)
    test_set = TensorDataset(torch.cat([quiet, near]))

    train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=64)
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.MSELoss()
    for epoch in range(4):
        train_mse = train_epoch(model, train_loader, optimizer, criterion)
        test_mse = evaluate(model, test_loader, criterion)
        print(f"epoch {epoch}: train {train_mse:.4f} test {test_mse:.4f}")


if __name__ == "__main__":
    main()
