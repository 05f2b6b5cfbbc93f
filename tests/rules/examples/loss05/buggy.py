import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x = torch.randn(16, 8)
    target = (x[:, :1] > 0).float()
    loss = nn.functional.cross_entropy(model(x), target)  # expect: LOSS05
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
