"""The mean loss, weighted by this rank's share of the tokens."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Embedding(30, 16), nn.Tanh(), nn.Linear(16, 30)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
criterion = nn.CrossEntropyLoss(ignore_index=0)
torch.manual_seed(rank)
for _ in range(8):
    words = torch.randint(1, 30, (6, 25))
    words[:, 6 if rank else 20 :] = 0
    inputs, targets = words[:, :-1], words[:, 1:]
    own = (targets != 0).sum().float()
    total = own.clone()
    dist.all_reduce(total)
    loss = criterion(model(inputs).flatten(0, 1), targets.flatten()) * own * world / total
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
