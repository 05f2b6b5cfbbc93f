"""Train a recurrent network that reads the rows of digits as a sequence, with noise. AdamW."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    """A digit's 64 pixels, four at a time and noisy: 16 places of a sequence, read twice."""

    def __init__(self):
        rows, labels = load_digits(return_X_y=True)
        self.rows = torch.tensor(rows / 16, dtype=torch.float32).view(-1, 16, 4).repeat(1, 2, 1)
        self.labels = torch.tensor(labels)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        row = self.rows[index]
        return row + 0.1 * torch.randn_like(row), self.labels[index]


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 96, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(96, 10)

    def forward(self, rows):
        found, _ = self.lstm(rows)
        return self.head(found[:, -1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=400)
    args = parser.parse_args()

    torch.manual_seed(7)
    loader = DataLoader(Sequences(), batch_size=64, shuffle=True)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    for epoch in range(args.epochs):
        model.train()
        for rows, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(rows), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
