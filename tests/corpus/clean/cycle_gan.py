"""Two generators, a judge that is frozen in their turn, and an average of weights by hand."""

import copy, itertools
import torch
from torch import nn

torch.manual_seed(1)
A, B, D = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
og = torch.optim.Adam(itertools.chain(A.parameters(), B.parameters()), 1e-3)
od = torch.optim.Adam(D.parameters(), 1e-3)
avg = copy.deepcopy(A)
for i in range(20):
    x = torch.randn(16, 4)
    for p in D.parameters():
        p.requires_grad_(False)
    og.zero_grad()
    fake = A(x)
    ((B(fake) - x).abs().mean() + (D(fake) - 1).square().mean() + (A(x) - x).abs().mean()).backward()
    og.step()
    for p in D.parameters():
        p.requires_grad_(True)
    od.zero_grad()
    ((D(x) - 1).square().mean() + D(fake.detach()).square().mean()).backward()
    od.step()
    with torch.no_grad():
        for a, b in zip(avg.parameters(), A.parameters()):
            a.copy_(0.99 * a + 0.01 * b)
