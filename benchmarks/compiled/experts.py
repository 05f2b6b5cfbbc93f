"""A mixture of experts: a gate chooses two of four for each sample."""

import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(6, 4)

    def forward(self, x):
        return torch.softmax(self.scores(x), dim=-1)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate()
        self.experts = nn.ModuleDict({name: nn.Linear(6, 8) for name in "abcd"})
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        share = self.gate(x)
        best, chosen = share.topk(2, dim=-1)
        weights = torch.zeros_like(share).scatter(1, chosen, best / best.sum(1, keepdim=True))
        made = torch.stack([expert(x) for expert in self.experts.values()], dim=1)
        return self.head((weights[..., None] * made).sum(1)), share.mean(0)


torch.manual_seed(19)
model = Experts()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.randn(32, 6)
for step in range(4):
    out, share = model(x)
    loss = (out - x.prod(1, keepdim=True)).square().mean() + 4 * share.square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
