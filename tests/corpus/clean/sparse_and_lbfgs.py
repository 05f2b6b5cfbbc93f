"""A sparse embedding and a head by LBFGS in turn; each zeroes its own gradients, the closure before all else."""

import torch
from torch import nn

torch.manual_seed(0)
table = nn.Embedding(50, 8, sparse=True)
head = nn.Linear(8, 1)
rows = torch.optim.SparseAdam(table.parameters(), lr=1e-2)
whole = torch.optim.LBFGS(head.parameters(), lr=0.1)
items = torch.randint(0, 50, (32,))
scores = torch.randn(32, 1)


def closure():
    whole.zero_grad()
    loss = (head(table(items)) - scores).square().mean()
    loss.backward()
    return loss


for turn in range(10):
    whole.step(closure)
    rows.zero_grad()
    loss = (head(table(items)) - scores).square().mean()
    loss.backward()
    rows.step()
    print(turn, loss.item())
