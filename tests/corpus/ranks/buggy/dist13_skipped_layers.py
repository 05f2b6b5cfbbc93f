# processes: 3
"""Stochastic depth with Accelerate: a skipped block has no gradient on that rank."""

import torch
from accelerate import Accelerator
from torch import nn


class Deep(nn.Module):
    def __init__(self, depth=4, width=12):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x, skipped):
        for number, block in enumerate(self.blocks):
            if number != skipped:
                x = x + block(x)
        return self.out(x)


accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = Deep()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
model, optimizer = accelerator.prepare(model, optimizer)
generator = torch.Generator().manual_seed(40 + accelerator.process_index)
for step in range(6):
    x = torch.randn(10, 12, generator=generator)
    skipped = int(torch.randint(0, 4, (1,), generator=generator))
    loss = (model(x, skipped) - x.mean(1, keepdim=True)).square().mean()  # expect: DIST13
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
accelerator.end_training()
