"""FSDP2 with torch.distributed.checkpoint, which all ranks call."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def build():
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model, optimizer, steps):
    for _ in range(steps):
        y = torch.randint(0, 2, (10,))
        x = torch.randn(10, 6) + y[:, None]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


dist.init_process_group("gloo")
torch.manual_seed(0)
model, optimizer = build()
torch.manual_seed(dist.get_rank())
train(model, optimizer, 4)
weights, states = get_state_dict(model, optimizer)
dcp.save({"model": weights, "optimizer": states}, checkpoint_id="checkpoint")
torch.manual_seed(5)
model, optimizer = build()
weights, states = get_state_dict(model, optimizer)
dcp.load({"model": weights, "optimizer": states}, checkpoint_id="checkpoint")
set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
torch.manual_seed(100 + dist.get_rank())
train(model, optimizer, 4)
dist.destroy_process_group()
