"""DDP script, as launched by torchrun; here with one process."""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup():
    store = os.path.join(tempfile.mkdtemp(), "store")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)


def build(seed=0):
    torch.manual_seed(seed)
    x = torch.randn(400, 12)
    y = (x[:, 0] * x[:, 1] > 0).long()
    return TensorDataset(x[:320], y[:320]), TensorDataset(x[320:], y[320:])


def run_epoch(model, loader, optimizer, criterion):
    model.train()
    total, count = 0.0, 0
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item() * len(y)
        count += len(y)
    return total / count


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    good = sum((model(x).argmax(-1) == y).sum().item() for x, y in loader)
    return good / len(loader.dataset)


def main(epochs=3):
    setup()
    train_set, val_set = build()
    sampler = DistributedSampler(train_set, shuffle=True, seed=0)  # expect: DATA03
    train_loader = DataLoader(train_set, batch_size=32, sampler=sampler)  # expect: DATA03
    val_loader = DataLoader(val_set, batch_size=80)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):  # expect: DATA03
        loss = run_epoch(model, train_loader, optimizer, criterion)
        scheduler.step()
        if dist.get_rank() == 0:
            print(f"[{epoch}] loss {loss:.4f} accuracy {accuracy(model, val_loader):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
