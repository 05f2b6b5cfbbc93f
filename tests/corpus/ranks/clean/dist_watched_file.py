"""The first rank writes a vocabulary; the others wait for a key in the store before they read it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    torch.save(torch.arange(20), "vocabulary.pt")
    store.set("vocabulary", "ready")
else:
    store.wait(["vocabulary"])
vocabulary = torch.load("vocabulary.pt", weights_only=True)
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Embedding(len(vocabulary), 8), nn.Linear(8, len(vocabulary))))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(rank)
for _ in range(8):
    words = torch.randint(0, len(vocabulary), (6, 12))
    optimizer.zero_grad()
    logits = model(words[:, :-1])
    nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()).backward()
    optimizer.step()
dist.barrier()
if rank == 0:
    os.remove("vocabulary.pt")
dist.destroy_process_group()
