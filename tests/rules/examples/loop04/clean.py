import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(80, 4).split(8)
for epoch in range(3):
    optimizer.zero_grad()
    for number, x in enumerate(data, start=1):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / 4
        loss.backward()
        if number % 4 == 0 or number == len(data):
            optimizer.step()
            optimizer.zero_grad()
