"""A moving average of the weights that only the first rank keeps and saves."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)))
average = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if rank == 0 else None
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(rank)
for _ in range(10):
    x = torch.randn(12, 6)
    optimizer.zero_grad()
    (model(x) - x.amin(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    if average is not None:
        average.update_parameters(model.module)
if average is not None:
    average.eval()
    with torch.no_grad():
        print(average(torch.ones(1, 6)).item())
    torch.save(average.state_dict(), "average.pt")
dist.barrier()
dist.destroy_process_group()
