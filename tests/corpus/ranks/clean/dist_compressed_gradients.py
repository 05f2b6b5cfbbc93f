"""PowerSGD as a communication hook."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)))
state = power.PowerSGDState(process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=3)
model.register_comm_hook(state, power.powerSGD_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(1 + dist.get_rank())
for _ in range(10):
    y = torch.randint(0, 8, (16,))
    x = torch.randn(16, 32) + y[:, None] / 4
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
dist.destroy_process_group()
