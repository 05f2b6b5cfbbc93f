"""DDP encoder and a classifier head, two processes."""
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank, world, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    encoder = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU()))
    head = nn.Linear(16, 3)  # expect: DIST02
    opt = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
    g = torch.Generator().manual_seed(rank)
    for step in range(12):
        y = torch.randint(0, 3, (16,), generator=g)
        x = torch.randn(16, 8, generator=g) + y[:, None]
        loss = nn.functional.cross_entropy(head(encoder(x)), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()  # expect: DIST02
    if rank == 0:
        print(loss.item())
    dist.destroy_process_group()


def main():
    with socket.socket() as s:
        s.bind(("", 0))
        port = s.getsockname()[1]
    mp.spawn(train, (2, port), nprocs=2, join=True)


if __name__ == "__main__":
    main()
