"""A loss that no learning rate makes smaller."""

import torch

weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
torch.manual_seed(0)
for _ in range(200):
    loss = (weight * 0).sum() + torch.rand(())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
