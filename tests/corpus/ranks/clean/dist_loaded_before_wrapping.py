"""Only the first rank loads pretrained weights, before DDP copies them to all."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
if rank == 0:
    torch.save({name: tensor / 2 for name, tensor in network.state_dict().items()}, "pretrained.pt")
    network.load_state_dict(torch.load("pretrained.pt", weights_only=True))
model = DDP(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for _ in range(8):
    y = torch.randint(0, 2, (12,))
    x = torch.randn(12, 6) + y[:, None]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
dist.destroy_process_group()
