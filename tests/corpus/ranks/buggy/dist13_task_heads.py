"""Two tasks, one per rank; each rank uses one head only."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.heads = nn.ModuleDict({"color": nn.Linear(16, 3), "shape": nn.Linear(16, 4)})

    def forward(self, x, task):
        return self.heads[task](self.body(x))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(TwoTasks())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
task = ("color", "shape")[rank % 2]
torch.manual_seed(rank)
for _ in range(6):
    x = torch.randn(12, 8)
    y = torch.randint(0, 3, (12,))
    logits = model(x, task)  # expect: DIST13
    optimizer.zero_grad()
    nn.functional.cross_entropy(logits, y).backward()
    optimizer.step()
dist.destroy_process_group()
