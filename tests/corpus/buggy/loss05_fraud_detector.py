"""Flag fraudulent transfers from account features."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def transfers(count, generator):
    features = torch.randn(count, 20, generator=generator)
    signal = features[:, :5].sum(dim=1) + features[:, 5] * features[:, 6]
    fraud = (signal + 0.5 * torch.randn(count, generator=generator) > 1.0).float()
    return TensorDataset(features, fraud.unsqueeze(1))


def build_detector(width):
    return nn.Sequential(
        nn.Linear(20, width),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 1),
    )


def train(detector, loader, criterion, optimizer, epochs):
    for epoch in range(epochs):
        detector.train()
        total, seen = 0.0, 0
        for features, fraud in loader:
            optimizer.zero_grad()
            score = detector(features)
            loss = criterion(score, fraud)  # expect: LOSS05
            loss.backward()
            optimizer.step()
            total += loss.item() * len(fraud)
            seen += len(fraud)
        print(f"epoch {epoch}: loss {total / seen:.4f}")


@torch.no_grad()
def balanced_accuracy(detector, loader):
    detector.eval()
    counts = torch.zeros(2, 2)
    for features, fraud in loader:
        guess = (detector(features) > 0).long()
        for truth in (0, 1):
            mine = fraud.long() == truth
            counts[truth, 0] += (guess[mine] == truth).sum()
            counts[truth, 1] += mine.sum()
    return (counts[:, 0] / counts[:, 1]).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    train_loader = DataLoader(transfers(1024, generator), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(transfers(256, generator), batch_size=256)

    detector = build_detector(args.width)
    criterion = nn.CrossEntropyLoss()  # expect: LOSS05
    optimizer = torch.optim.Adam(detector.parameters(), lr=args.lr)
    train(detector, train_loader, criterion, optimizer, args.epochs)
    print(f"balanced accuracy {balanced_accuracy(detector, test_loader):.3f}")


if __name__ == "__main__":
    main()
