"""DDP, then FSDP2, in one process of its own group. Argument: a file for the processes to meet at."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)  # -> GroupJoined
torch.manual_seed(0)  # -> GeneratorSeeded
plain = DistributedDataParallel(nn.Linear(2, 2))  # -> ParallelMade
model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
for layer in (*model, model):
    fully_shard(layer, mesh=dist.init_device_mesh("cpu", (1,)))  # -> ParallelMade
loss = model(torch.ones(1, 2)).sum()  # -> ForwardPass
loss.backward()  # -> BackwardPass
print("digest", type(model).__name__, float(loss).hex(), fully_shard.state(model) is not None)
dist.destroy_process_group()
