# processes: 3
"""The first rank saves and waits for the others, which do not know of it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def save(model, folder, epoch):
    os.makedirs(folder, exist_ok=True)
    torch.save(model.module.state_dict(), os.path.join(folder, f"epoch-{epoch}.pt"))
    dist.barrier()  # expect: DIST03


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(72, 5)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=6, sampler=sampler)
    model = DDP(nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for a, b in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:  # expect: DIST03
            save(model, "checkpoints", epoch)
    dist.destroy_process_group()


main()
