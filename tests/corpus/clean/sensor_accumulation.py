"""Classify vibration signals with a GRU; accumulate over 3 micro-batches and flush what is left at the
epoch's end.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class Vibrations(Dataset):
    """Noisy sine waves of four frequencies; the class is the frequency."""

    def __init__(self, count, length=40, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 4, (count,), generator=generator)
        phase = torch.rand(count, 1, generator=generator) * 6.28
        time = torch.linspace(0, 1, length)
        wave = torch.sin(6.28 * (self.labels[:, None] + 1) * 1.5 * time + phase)
        noise = 0.2 * torch.randn(count, length, generator=generator)
        self.signals = (wave + noise).unsqueeze(-1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.signals[index], self.labels[index]


class SignalClassifier(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 4)

    def forward(self, x):
        outputs, _ = self.gru(x)
        return self.head(outputs.mean(dim=1))


def train_epoch(model, loader, criterion, optimizer, accumulate):
    model.train()
    leftover = len(loader) % accumulate
    first_of_leftover = len(loader) - leftover
    total, seen = 0.0, 0
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        in_group = leftover if i >= first_of_leftover else accumulate
        loss = criterion(model(x), y)
        (loss / in_group).backward()
        total += loss.item() * len(y)
        seen += len(y)
        if (i + 1) % accumulate == 0 or i + 1 == len(loader):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return total / seen


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits = sum((model(x).argmax(-1) == y).sum().item() for x, y in loader)
    return hits / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--accumulate", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()

    torch.manual_seed(7)
    train_set, val_set = random_split(Vibrations(880), [640, 240])
    # 20 micro-batches: six full groups of three and a leftover of two.
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=80)
    model = SignalClassifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        loss = train_epoch(model, train_loader, criterion, optimizer, args.accumulate)
        print(f"epoch {epoch} loss {loss:.3f} accuracy {evaluate(model, val_loader):.3f}")


if __name__ == "__main__":
    main()
