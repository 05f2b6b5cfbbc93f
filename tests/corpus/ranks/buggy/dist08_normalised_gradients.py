"""Every gradient is divided by its norm, shard by shard."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(5)
model = nn.Linear(10, 7, bias=False)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
torch.manual_seed(5 + dist.get_rank())
for _ in range(10):
    x = torch.randn(12, 10)
    loss = (model(x) - x[:, :7] * torch.arange(7)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        local = parameter.grad.to_local()  # expect: DIST08
        local /= local.norm() + 1e-8
    optimizer.step()
dist.destroy_process_group()
