"""Every rank saves its generators and its part of the metrics in a file of its own, and reads them back."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(6):
    x = torch.randn(8, 3)
    optimizer.zero_grad()
    loss = (model(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    torch.save({"generator": torch.get_rng_state(), "loss": loss.item()}, f"rank-{rank}.pt")
state = torch.load(f"rank-{rank}.pt", weights_only=True)
torch.set_rng_state(state["generator"])
if rank == 0:
    torch.save(model.module.state_dict(), "model.pt")
dist.barrier()
dist.destroy_process_group()
