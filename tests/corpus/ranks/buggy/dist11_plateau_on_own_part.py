"""Validation is split over ranks, and each rank lowers its learning rate as it sees fit."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def loaders(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(96, 6, generator=generator)
    y = x[:, :1] - x[:, 1:2] ** 2
    train, valid = TensorDataset(x[:64], y[:64]), TensorDataset(x[64:], y[64:])
    sampler = DistributedSampler(train)
    held_out = DistributedSampler(valid, shuffle=False)
    return sampler, DataLoader(train, batch_size=8, sampler=sampler), DataLoader(valid, batch_size=8, sampler=held_out)


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(x), y, reduction="sum") for x, y in loader]
    model.train()
    return torch.stack(losses).sum().item() / len(loader.sampler)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    sampler, loader, held_out = loaders(3)
    model = DDP(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = ReduceLROnPlateau(optimizer, patience=1)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        scheduler.step(evaluate(model, held_out))  # expect: DIST11
    dist.destroy_process_group()


main()
