"""The summed loss over the mean number of tokens per rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 30)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(rank)
for _ in range(8):
    words = torch.randint(1, 30, (6, 25))
    labels = words.roll(-1, 1)
    labels[:, 8 if rank else 22 :] = -100
    total = (labels != -100).sum()
    dist.all_reduce(total)
    logits = model(words)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") * world / total
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
