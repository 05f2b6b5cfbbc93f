import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
compiled = torch.compile(model, backend="eager", dynamic=False)  # expect: PERF04
for step in range(5):
    loss = compiled(torch.randn(8 + step, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
