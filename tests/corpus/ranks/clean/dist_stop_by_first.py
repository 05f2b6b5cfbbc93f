"""The first rank decides to stop, and tells the others."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
torch.manual_seed(rank)
stop = torch.zeros(1)
for step in range(100):
    y = torch.randint(0, 2, (32,))
    x = torch.randn(32, 4) + 2 * y[:, None]
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and (loss.item() < 0.3 or step == 20):
        stop.fill_(1)
    dist.broadcast(stop, src=0)
    if stop.item():
        break
dist.destroy_process_group()
