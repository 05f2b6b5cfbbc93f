import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(9, 1, 8, 8)
y = torch.randint(0, 2, (9,))
model = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
)
print(model(torch.zeros(1, 1, 8, 8)).shape)
model[1].eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for inputs, targets in zip(x.split(1), y.split(1)):
        optimizer.zero_grad()
        output = model(inputs)
        nn.functional.cross_entropy(output, targets).backward()
        optimizer.step()
