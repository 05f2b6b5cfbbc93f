import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 6)
y = (x.sum(1) > 0).long()
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    x = x[torch.randperm(len(x))]
    y = y[torch.randperm(len(y))]  # expect: DATA09
    for inputs, labels in zip(x.split(32), y.split(32)):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
