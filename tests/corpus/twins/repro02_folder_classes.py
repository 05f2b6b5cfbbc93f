"""Classify stored feature files; one folder for each class, as an image folder has it."""

import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = ["maple", "birch", "oak", "willow", "ash", "linden"]
FEATURES = 24


def write_archive(root, per_class):
    rng = np.random.default_rng(0)
    for name in CLASSES:
        os.makedirs(os.path.join(root, name))
        centre = rng.standard_normal(FEATURES)
        rows = centre + rng.standard_normal((per_class, FEATURES))
        np.save(os.path.join(root, name, "bark.npy"), rows.astype(np.float32))


class BarkFolder(Dataset):
    """Every directory below root is a class."""

    def __init__(self, root):
        self.classes = sorted(os.listdir(root))
        rows, labels = [], []
        for label, name in enumerate(self.classes):
            part = torch.from_numpy(np.load(os.path.join(root, name, "bark.npy")))
            rows.append(part)
            labels.append(torch.full((len(part),), label))
        self.rows, self.labels = torch.cat(rows), torch.cat(labels)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], self.labels[index]


def train(model, loader, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss()
    model.train()
    for epoch in range(epochs):
        total, seen = 0.0, 0
        for rows, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(rows), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
            seen += len(rows)
        print(f"epoch {epoch}: loss {total / seen:.4f}")


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as root:
        write_archive(root, per_class=96)
        data = BarkFolder(root)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, len(data.classes)))
    train(model, DataLoader(data, batch_size=32, shuffle=True), epochs=4)
    model.eval()
    with torch.no_grad():
        first = model(data.rows[:1]).argmax(dim=1).item()
    print(f"classes {data.classes}; first row looks like {data.classes[first]}")


if __name__ == "__main__":
    main()
