import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    x = torch.randn(8, 4)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True), reduction="sum") / len(x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
second = nn.Linear(4, 1)
accumulating = torch.optim.SGD(second.parameters(), lr=0.01)
for step in range(4):
    accumulating.zero_grad()
    for _ in range(4):
        x = torch.randn(8, 4)
        loss = nn.functional.mse_loss(second(x), x.sum(1, keepdim=True)) / 4
        loss.backward()
    accumulating.step()
