import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    x = torch.randn(8, 4)
    x[0] = 0.0
    optimizer.zero_grad()
    length = (model(x) - model.bias).square().sum(1).sqrt()
    loss = torch.where(x.any(1), length, 0.0).mean()
    loss.backward()
    optimizer.step()  # expect: LOOP11
