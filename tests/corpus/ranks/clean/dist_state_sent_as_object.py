"""The first rank has the optimizer's state and sends it to the others."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Linear(5, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(rank)


def step():
    x = torch.randn(12, 5)
    optimizer.zero_grad()
    (model(x) - x.mean(1, keepdim=True)).square().mean().backward()
    optimizer.step()


for _ in range(4):
    step()
box = [optimizer.state_dict() if rank == 0 else None]
dist.broadcast_object_list(box, src=0)
if rank != 0:
    optimizer.load_state_dict(box[0])
for _ in range(4):
    step()
dist.destroy_process_group()
