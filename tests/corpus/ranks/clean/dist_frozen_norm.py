"""Two samples per rank, and BatchNorm that is frozen; GroupNorm where training goes on."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()).requires_grad_(False)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, stride=4), nn.GroupNorm(4, 8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def train(self, mode=True):
        super().train(mode)
        self.stem.eval()
        return self

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean((2, 3)))


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(Net().train())
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
torch.manual_seed(dist.get_rank())
for _ in range(6):
    y = torch.randint(0, 2, (2,))
    x = torch.randn(2, 3, 8, 8) + y[:, None, None, None]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
dist.destroy_process_group()
