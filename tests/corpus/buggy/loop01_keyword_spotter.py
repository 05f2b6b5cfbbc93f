"""Keyword spotting on synthetic log-mel features with a small depthwise-separable network."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

KEYWORDS = ["yes", "no", "stop", "go", "left", "right"]


class DSBlock(nn.Module):
    def __init__(self, channels, kernel):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(channels, channels, kernel, padding=kernel // 2, groups=channels, bias=False),
            nn.BatchNorm1d(channels),
            nn.ReLU(),
            nn.Conv1d(channels, channels, 1, bias=False),
            nn.BatchNorm1d(channels),
        )

    def forward(self, x):
        return torch.relu(x + self.net(x))


class KeywordSpotter(nn.Module):
    def __init__(self, mels, channels, keywords):
        super().__init__()
        self.stem = nn.Conv1d(mels, channels, 5, padding=2)
        self.blocks = nn.Sequential(DSBlock(channels, 5), DSBlock(channels, 9))
        self.out = nn.Linear(channels, keywords)

    def forward(self, x):
        x = self.blocks(torch.relu(self.stem(x)))
        return self.out(x.mean(dim=2))


def make_features(n, frames, mels, generator):
    labels = torch.randint(len(KEYWORDS), (n,), generator=generator)
    patterns = torch.randn(len(KEYWORDS), mels, frames, generator=torch.Generator().manual_seed(99))
    noise = torch.randn(n, mels, frames, generator=generator)
    return TensorDataset(0.35 * patterns[labels] + noise, labels)


def executor_train(model, optimizer, loader, criterion, clip):
    model.train()
    loss_sum, seen = 0.0, 0
    for feats, target in loader:
        logits = model(feats)
        loss = criterion(logits, target)
        loss.backward()  # expect: LOOP01
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
        if torch.isfinite(grad_norm):
            optimizer.step()  # expect: LOOP01
        loss_sum += loss.item() * len(target)
        seen += len(target)
    return loss_sum / seen


@torch.no_grad()
def executor_cv(model, loader):
    model.eval()
    hits, seen = 0, 0
    for feats, target in loader:
        hits += (model(feats).argmax(1) == target).sum().item()
        seen += len(target)
    return hits / seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--clip", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=777)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    train_set = make_features(384, 40, 20, generator)
    cv_set = make_features(128, 40, 20, generator)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    cv_loader = DataLoader(cv_set, batch_size=64)

    model = KeywordSpotter(mels=20, channels=32, keywords=len(KEYWORDS))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        loss = executor_train(model, optimizer, train_loader, criterion, args.clip)
        print(f"epoch {epoch}: train loss {loss:.3f}  cv accuracy {executor_cv(model, cv_loader):.3f}")


if __name__ == "__main__":
    main()
