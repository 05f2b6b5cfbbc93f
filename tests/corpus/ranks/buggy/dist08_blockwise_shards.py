"""Blocks sharded one by one; the norm is taken over what this rank holds."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def clip(parameters, limit):
    shards = [p.grad._local_tensor for p in parameters]  # expect: DIST08
    norm = torch.linalg.vector_norm(torch.cat([shard.flatten() for shard in shards]))
    scale = limit / torch.clamp(norm, min=limit)
    for shard in shards:
        shard.mul_(scale)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(16) for _ in range(2)), nn.Linear(16, 16))
    for block in model[:2]:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(8):
        x = torch.randn(8, 16)
        (model(x) - 3 * x).square().mean().backward()
        clip(list(model.parameters()), 0.05)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
