"""Train on digits that take a while to read, as files on a network do. A loader without workers, Adam."""

import argparse
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

READ_S = 0.001


class Files(Dataset):
    """Digits; reading one takes a millisecond."""

    def __init__(self):
        rows, labels = load_digits(return_X_y=True)
        self.rows = torch.tensor(rows / 16, dtype=torch.float32)
        self.labels = torch.tensor(labels)

    def __len__(self):
        return 20 * len(self.labels)

    def __getitem__(self, index):
        time.sleep(READ_S)
        row = self.rows[index % len(self.labels)]
        return row + 0.1 * torch.randn_like(row), self.labels[index % len(self.labels)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()

    torch.manual_seed(7)
    loader = DataLoader(Files(), batch_size=32, shuffle=True, num_workers=0)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)

    step = 0
    for epoch in range(args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                print(f"epoch {epoch}, step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
