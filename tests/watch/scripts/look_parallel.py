"""DDP, FSDP2 and DTensor on several processes, started by torchrun; the first prints a digest."""

import gc
import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel


def train() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    parallel = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)))
    sharded = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 2))
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW([*parallel.parameters()], lr=0.01)
    others = torch.optim.SGD(sharded.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        loss = parallel(x).square().mean() + sharded(x).square().mean()
        optimizer.zero_grad()
        others.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(sharded.parameters(), 0.5)
        others.step()
        optimizer.step()
    table = distribute_tensor(torch.arange(12.0).view(6, 2), mesh, [Shard(0)])
    values = [norm.full_tensor(), (table @ table.T).full_tensor(), *parallel.state_dict().values()]
    values += [value.full_tensor() for value in sharded.state_dict().values()]
    found = hashlib.sha256()
    for value in values:
        found.update(value.numpy().tobytes())
    if dist.get_rank() == 0:
        print("digest", found.hexdigest())


dist.init_process_group("gloo")
train()
gc.collect()  # a group that models still hold when Python ends may abort the process: a thread is not joined
dist.destroy_process_group()
