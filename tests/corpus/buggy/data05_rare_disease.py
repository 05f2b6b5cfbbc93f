"""Rare disease screening: the few positive patients are repeated to balance the classes."""

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MARKERS = 30


def patients(count, rng):
    markers = rng.standard_normal((count, MARKERS)).astype(np.float32)
    risk = markers[:, :4].sum(axis=1) + 1.5 * rng.standard_normal(count)
    return markers, (risk > np.quantile(risk, 0.9)).astype(np.int64)


def oversample(markers, ill, rng):
    """Repeat patients of the smaller class until both classes are equally large."""
    positive, negative = np.flatnonzero(ill == 1), np.flatnonzero(ill == 0)
    repeated = rng.choice(positive, size=len(negative))
    index = np.concatenate([negative, repeated])
    return markers[index], ill[index]


def prepare(rng):
    markers, ill = patients(800, rng)
    markers, ill = oversample(markers, ill, rng)  # expect: DATA05
    x_train, x_val, y_train, y_val = train_test_split(  # expect: DATA05
        markers, ill, test_size=0.25, random_state=0, stratify=ill
    )
    train = TensorDataset(torch.from_numpy(x_train), torch.from_numpy(y_train))
    val = TensorDataset(torch.from_numpy(x_val), torch.from_numpy(y_val))
    return DataLoader(train, batch_size=64, shuffle=True), DataLoader(val, batch_size=128)


class Screening(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(MARKERS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.out = nn.Linear(width, 2)

    def forward(self, markers):
        return self.out(self.layers(markers))


def sensitivity(model, loader):
    model.eval()
    found = ill = 0
    with torch.no_grad():
        for markers, label in loader:  # expect: DATA05
            found += ((model(markers).argmax(dim=1) == 1) & (label == 1)).sum().item()
            ill += (label == 1).sum().item()
    return found / ill


def main():
    torch.manual_seed(0)
    train_loader, val_loader = prepare(np.random.default_rng(0))
    model = Screening()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(6):
        model.train()
        for markers, label in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(markers), label)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}, sensitivity {sensitivity(model, val_loader):.3f}")


if __name__ == "__main__":
    main()
