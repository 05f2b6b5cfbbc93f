"""FSDP2 with bfloat16 parameters in forward, and gradients summed in float32."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 3))
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank())
for _ in range(8):
    y = torch.randint(0, 3, (16,))
    x = torch.randn(16, 8) + y[:, None]
    loss = nn.functional.cross_entropy(model(x).float(), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
