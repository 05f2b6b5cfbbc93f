"""FSDP2, clipped by hand with the norm over all shards."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(8):
    x = torch.randn(12, 8)
    optimizer.zero_grad()
    (model(x) - 3 * x).square().mean().backward()
    shards = [p.grad.to_local() for p in model.parameters()]
    square = torch.stack([shard.square().sum() for shard in shards]).sum()
    dist.all_reduce(square)
    scale = min(1.0, 0.5 / (square.sqrt().item() + 1e-6))
    for shard in shards:
        shard.mul_(scale)
    optimizer.step()
dist.destroy_process_group()
