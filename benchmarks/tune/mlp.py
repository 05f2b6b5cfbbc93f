"""Train a small network on handwritten digits. A loader without workers, Adam."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10_000)
    args = parser.parse_args()

    torch.manual_seed(7)
    rows, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(rows / 16, dtype=torch.float32), torch.tensor(labels))
    loader = DataLoader(data, batch_size=128, shuffle=True)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(args.epochs):
        total = 0.0
        for x, y in loader:
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if epoch % 20 == 0:
            print(f"epoch {epoch}: loss {total / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
