# processes: 4
"""Two models, each trained by a group of two ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
half = rank // 2
torch.manual_seed(half)
model = DDP(nn.Linear(5, 1), process_group=groups[half])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (1 + half))
torch.manual_seed(10 + rank)
for _ in range(8):
    x = torch.randn(10, 5)
    optimizer.zero_grad()
    (model(x) - (1 + half) * x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
if rank in (0, 2):
    torch.save(model.module.state_dict(), f"model-{half}.pt")
dist.barrier()
dist.destroy_process_group()
