import torch
from torch import nn
from torch.optim import lr_scheduler

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
warmup = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=6)
decay = lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
schedule = lr_scheduler.SequentialLR(optimizer, [warmup, decay], milestones=[6])
for step in range(5):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    schedule.step()
