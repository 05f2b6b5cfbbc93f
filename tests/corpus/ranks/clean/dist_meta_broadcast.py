"""FSDP2 from the meta device: the first rank's weights are broadcast."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard


def build():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
full = build().state_dict() if rank == 0 else {}
with torch.device("meta"):
    model = build()
fully_shard(model)
model.to_empty(device="cpu")
set_model_state_dict(model, full, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(6):
    y = torch.randint(0, 3, (12,))
    x = torch.randn(12, 8) + y[:, None]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
dist.destroy_process_group()
