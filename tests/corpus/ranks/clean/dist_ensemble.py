"""An ensemble: every rank trains a model of its own; only predictions are gathered."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(33 + rank)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(12):
    x = torch.randn(20, 4)
    optimizer.zero_grad()
    (model(x) - x.prod(1, keepdim=True)).square().mean().backward()
    optimizer.step()
model.eval()
grid = torch.linspace(-1, 1, 12).reshape(3, 4)
with torch.no_grad():
    own = model(grid)
gathered = [torch.empty_like(own) for _ in range(world)]
dist.all_gather(gathered, own)
if rank == 0:
    print(torch.stack(gathered).mean(0).flatten().tolist())
dist.destroy_process_group()
