import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
nn.init.constant_(model[0].bias, -6.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    x = torch.randn(32, 6)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()  # expect: PROBE04
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
