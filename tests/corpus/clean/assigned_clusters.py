"""Positions are shared out among clusters and slots: the softmax runs over those on purpose."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)


class Vlad(nn.Module):
    def __init__(self):
        super().__init__()
        self.assign = nn.Conv1d(8, 10, 1)
        self.centers = nn.Parameter(torch.randn(10, 8))
        self.slots = nn.Parameter(torch.randn(1, 10, 8))
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        b, n, d = x.shape
        soft = self.assign(x.transpose(1, 2)).softmax(dim=1)
        vlad = soft @ x - soft.sum(-1, keepdim=True) * self.centers
        scores = self.slots.expand(b, -1, -1) @ x.transpose(1, 2)
        weights = scores.softmax(dim=1) + 1e-8
        weights = weights / weights.sum(-1, keepdim=True)
        slots = weights @ x
        return self.out((vlad + slots).mean(1))


net = Vlad()
opt = torch.optim.Adam(net.parameters(), 1e-3)
for step in range(4):
    x = torch.randn(4, 10, 8)
    loss = F.cross_entropy(net(x), torch.randint(0, 2, (4,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
