# processes: 3
"""Accumulation over micro-batches, clipping, and one flat all-reduce at the end."""

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

MICRO = 3


def average(module):
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    flat = _flatten_dense_tensors(grads)
    dist.all_reduce(flat, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
    flat /= dist.get_world_size()
    for grad, new in zip(grads, _unflatten_dense_tensors(flat, grads)):
        grad.copy_(new)


def train(module, optimizer, generator):
    for _ in range(8):
        optimizer.zero_grad()
        for _ in range(MICRO):
            x = torch.randn(8, 10, generator=generator)
            loss = nn.functional.mse_loss(module(x), x.flip(1)) / MICRO
            loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)  # expect: DIST15
        average(module)
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 10))
    train(module, torch.optim.SGD(module.parameters(), lr=0.5), torch.Generator().manual_seed(dist.get_rank()))
    dist.destroy_process_group()
