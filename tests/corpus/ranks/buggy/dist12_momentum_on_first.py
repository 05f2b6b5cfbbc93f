"""Resume: the model comes to all ranks through DDP, the optimizer's momentum does not."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def batches(rank, count):
    generator = torch.Generator().manual_seed(rank)
    for _ in range(count):
        x = torch.randn(16, 5, generator=generator)
        yield x, x @ torch.arange(5.0)[:, None]


def train(model, optimizer, rank, count):
    for x, y in batches(rank, count):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def resume(path, rank):
    network = nn.Linear(5, 1)
    state = torch.load(path, weights_only=True) if rank == 0 else None
    if state:
        network.load_state_dict(state["model"])
    model = DDP(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if state:
        optimizer.load_state_dict(state["optimizer"])  # expect: DIST12
    return model, optimizer


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    path = os.path.join(tempfile.gettempdir(), f"momentum-{os.getppid()}.pt")
    if rank == 0:
        torch.manual_seed(0)
        network = nn.Linear(5, 1)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
        network(torch.randn(4, 5)).sum().backward()
        optimizer.step()
        torch.save({"model": network.state_dict(), "optimizer": optimizer.state_dict()}, path)
    dist.barrier()
    model, optimizer = resume(path, rank)
    train(model, optimizer, rank, 8)
    dist.destroy_process_group()
    if rank == 0:
        os.remove(path)


main()
