"""FSDP2; each rank draws the weights again with a generator of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [nn.Linear(12, 12) for _ in range(3)]
model = nn.Sequential(*layers, nn.Linear(12, 2))
drawing = torch.Generator().manual_seed(77 + dist.get_rank())
for layer in model:
    nn.init.normal_(layer.weight, std=0.2, generator=drawing)
for layer in layers:
    fully_shard(layer)  # expect: DIST09
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(dist.get_rank())
for _ in range(6):
    x = torch.randn(10, 12, generator=generator)
    y = (x[:, 0] > 0).long()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
