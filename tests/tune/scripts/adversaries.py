"""Two optimizers that take turns, gradients that are scaled, and a loss that stops being a number."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
maker, judge = nn.Linear(4, 8), nn.Linear(8, 1)
makes = torch.optim.Adam(maker.parameters(), lr=1e-3)
judges = torch.optim.SGD(judge.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(500):
    made, real = maker(torch.randn(16, 4)), torch.randn(16, 8) + 1
    score = judge(real).mean() - judge(made.detach()).mean()
    judges.zero_grad()
    scaler.scale(F.softplus(-score)).backward()
    scaler.step(judges)
    makes.zero_grad()
    loss = F.softplus(-judge(made).mean())
    scaler.scale(loss * float("nan") if step == 60 else loss).backward()
    scaler.step(makes)
    scaler.update()
