"""A detector's backbone: two images per rank, and one pixel left where the last BatchNorm stands."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Stage(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outside)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))  # expect: DIST14


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(Stage(3, 8), Stage(8, 16), Stage(16, 16), Stage(16, 16))
        self.box = nn.Linear(16, 4)

    def forward(self, images):
        return self.box(self.stages(images).flatten(1))


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(Backbone())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
for _ in range(6):
    images = torch.randn(2, 3, 16, 16)
    boxes = images.mean((1, 2, 3))[:, None].expand(2, 4)
    optimizer.zero_grad()
    nn.functional.smooth_l1_loss(model(images), boxes).backward()
    optimizer.step()
dist.destroy_process_group()
