"""Anomaly scores for a stream of log events, read through an iterable dataset."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

FIELDS = 32
EVENTS = 1280


class LogStream(IterableDataset):
    """Events are drawn from a seeded generator, shard by shard, in an order that changes every epoch."""

    def __init__(self, shards, seed):
        self.shards = shards
        self.seed = seed

    def read_shard(self, shard):
        generator = torch.Generator().manual_seed(self.seed + shard)
        events = torch.randn(EVENTS // 8, FIELDS, generator=generator)
        weights = torch.linspace(-1, 1, FIELDS)
        label = (events @ weights + 0.5 * torch.randn(len(events), generator=generator) > 0).float()
        return events, label

    def __iter__(self):
        shards = range(self.shards)
        for position in torch.randperm(len(shards)).tolist():
            events, label = self.read_shard(shards[position])
            for index in torch.randperm(len(events)).tolist():
                yield events[index], label[index]  # expect: DATA02


def build_model():
    return nn.Sequential(
        nn.Linear(FIELDS, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1), nn.Flatten(0)
    )


def main():
    torch.manual_seed(0)
    train_loader = DataLoader(  # expect: DATA02
        LogStream(shards=8, seed=100), batch_size=32, num_workers=2, persistent_workers=True
    )
    test_loader = DataLoader(LogStream(shards=2, seed=500), batch_size=64)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    criterion = nn.BCEWithLogitsLoss()

    for epoch in range(3):
        model.train()
        seen = 0
        for events, label in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(events), label)
            loss.backward()
            optimizer.step()
            seen += len(label)

        model.eval()
        hits = total = 0
        with torch.no_grad():
            for events, label in test_loader:
                hits += ((model(events) > 0) == (label > 0.5)).sum().item()
                total += len(label)
        print(f"epoch {epoch}: {seen} events, last loss {loss.item():.4f}, accuracy {hits / total:.3f}")


if __name__ == "__main__":
    main()
