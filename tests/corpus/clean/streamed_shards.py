"""An IterableDataset whose workers share the shards out between them, seen with two workers."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SHARDS, PER_SHARD, BATCH = 8, 400, 50


def read_shard(number):
    """Stand-in for a file: the same rows each time it is read."""
    generator = torch.Generator().manual_seed(1000 + number)
    x = torch.randn(PER_SHARD, 8, generator=generator)
    y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).long()
    return x, y


class Stream(IterableDataset):
    def __init__(self, shards):
        self.shards = list(shards)
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order_generator = torch.Generator().manual_seed(self.epoch)  # every worker finds the same order
        order = torch.randperm(len(self.shards), generator=order_generator).tolist()
        info = get_worker_info()
        if info is not None:
            order = order[info.id :: info.num_workers]
        for position in order:
            x, y = read_shard(self.shards[position])
            generator = torch.Generator().manual_seed(self.epoch * len(self.shards) + position)
            for rows in torch.randperm(len(x), generator=generator).split(BATCH):
                yield x[rows], y[rows]


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(dim=1) == y).float().mean().item()


def main():
    torch.manual_seed(137)
    stream = Stream(range(SHARDS))
    workers = min(2, os.cpu_count() or 1)
    loader = DataLoader(stream, batch_size=None, num_workers=workers)  # the stream makes the batches
    x_test, y_test = read_shard(SHARDS)
    model = nn.Sequential(nn.Linear(8, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU(), nn.Linear(384, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(3):
        stream.set_epoch(epoch)
        model.train()
        total, seen = 0.0, 0
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
            seen += len(y)
        print(
            f"epoch {epoch}: {seen} samples, loss {total / seen:.3f}, "
            f"accuracy {evaluate(model, x_test, y_test):.3f}"
        )


if __name__ == "__main__":
    main()
