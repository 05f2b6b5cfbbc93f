"""Residual blocks of convolution and normalisation on short signals."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class UNetish(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Conv1d(1, 8, 3, padding=1)
        blocks = []
        for _ in range(3):
            blocks.append([nn.Conv1d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)])
        self.blocks = blocks  # expect: PAR01
        self.out = nn.Conv1d(8, 1, 1)

    def forward(self, x):
        h = self.inp(x)
        for conv, norm in self.blocks:
            h = h + F.gelu(norm(conv(h)))
        return self.out(h)


net = UNetish()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.0)
for i in range(40):
    x = torch.randn(8, 1, 32)
    loss = F.l1_loss(net(x), x.flip(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 10 == 0:
        print(i, loss.item())
