"""Topic classification of headlines; attention pooling, linear warm-up and decay of the learning rate."""

import argparse

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset


def headlines(n, vocab, topics, seed):
    g = torch.Generator().manual_seed(seed)
    topic = torch.randint(topics, (n,), generator=g)
    words = torch.randint(vocab, (n, 12), generator=g)
    own = topic[:, None] * (vocab // topics) + torch.randint(vocab // topics, (n, 12), generator=g)
    return TensorDataset(torch.where(torch.rand(n, 12, generator=g) < 0.4, own, words), topic)


class HeadlineModel(nn.Module):
    def __init__(self, vocab, topics, width=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.attend = nn.Linear(width, 1)
        self.classify = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, topics)
        )

    def forward(self, words):
        x = self.embed(words)
        weights = torch.softmax(self.attend(x), dim=1)
        return self.classify((weights * x).sum(dim=1))


def linear_schedule_with_warmup(optimizer, warmup_steps, total_steps):
    def factor(step):
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        return max(0.0, (total_steps - step) / (total_steps - warmup_steps))

    return LambdaLR(optimizer, factor)


def run_epoch(model, loader, criterion, optimizer, scheduler):
    model.train()
    total, count = 0.0, 0
    for words, topic in loader:
        loss = criterion(model(words), topic)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        total += loss.item() * len(topic)
        count += len(topic)
    return total / count


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits, count = 0, 0
    for words, topic in loader:
        hits += (model(words).argmax(dim=1) == topic).sum().item()
        count += len(topic)
    return hits / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--warmup-ratio", type=float, default=0.1)
    args = parser.parse_args()
    torch.manual_seed(17)
    train_loader = DataLoader(headlines(640, 200, 5, seed=1), batch_size=args.batch_size, shuffle=True)
    dev_loader = DataLoader(headlines(200, 200, 5, seed=2), batch_size=200)
    model = HeadlineModel(200, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    total_steps = len(train_loader) * args.epochs
    scheduler = linear_schedule_with_warmup(optimizer, int(total_steps * args.warmup_ratio), total_steps)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        loss = run_epoch(model, train_loader, criterion, optimizer, scheduler)
        lr = optimizer.param_groups[0]["lr"]
        print(f"epoch {epoch}: loss {loss:.3f}  dev {evaluate(model, dev_loader):.3f}  lr {lr:.1e}")


if __name__ == "__main__":
    main()
