"""Handwritten digits (scikit-learn's 8x8 set), small conv net, cosine annealing."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 5


class DigitNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.fc = nn.Linear(128, 10)

    def forward(self, x):
        return self.fc(self.body(x).flatten(1))


def get_loaders(batch_size=64):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target)
    train_idx, test_idx = train_test_split(
        range(len(labels)), test_size=0.25, random_state=0, stratify=labels
    )
    train = TensorDataset(images[train_idx], labels[train_idx])
    test = TensorDataset(images[test_idx], labels[test_idx])
    return DataLoader(train, batch_size, shuffle=True, drop_last=True), DataLoader(test, 256)


def train_one_epoch(model, loader, optimizer, scheduler, criterion):
    model.train()
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    scheduler.step()
    return total / len(loader)


def accuracy(model, loader):
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in loader:
            hits += (model(x).argmax(1) == y).sum().item()
    return hits / len(loader.dataset)


def main():
    torch.manual_seed(0)
    train_loader, test_loader = get_loaders()
    model = DigitNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = CosineAnnealingLR(optimizer, T_max=EPOCHS)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        loss = train_one_epoch(model, train_loader, optimizer, scheduler, criterion)
        print(
            f"epoch {epoch + 1}/{EPOCHS}  loss {loss:.3f}  test accuracy {accuracy(model, test_loader):.3f}"
        )


if __name__ == "__main__":
    main()
