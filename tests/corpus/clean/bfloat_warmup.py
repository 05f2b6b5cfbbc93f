"""A model in bfloat16 in the first steps of a long warm-up: nearly nothing moves yet."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(16)
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4000))
for step in range(30):
    x = torch.randn(32, 16, dtype=torch.bfloat16)
    loss = F.cross_entropy(model(x).float(), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    warm_up.step()
