import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(4):
    x = torch.randint(0, 256, (8, 1, 8, 8)).float()
    y = (x.mean((1, 2, 3)) > 127).long()
    loss = nn.functional.cross_entropy(model(x), y)  # expect: DATA07
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
