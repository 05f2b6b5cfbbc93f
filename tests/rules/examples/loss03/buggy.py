import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x = torch.randn(16, 8)
    target = x.sum(1)
    loss = (model(x) - target).abs().mean()  # expect: LOSS03
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
