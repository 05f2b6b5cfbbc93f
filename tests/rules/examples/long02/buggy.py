import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(400):
    x = torch.randn(32, 8)
    y = x[:, :3].argmax(1)
    if step == 150:
        optimizer.param_groups[0]["lr"] = 100.0  # meant to be 0.01
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()  # expect: LONG02
    optimizer.step()
