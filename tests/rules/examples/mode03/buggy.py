import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(96, 6)
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters())


def accuracy():
    model.eval()
    with torch.no_grad():
        return (model(x[64:]).argmax(1) == y[64:]).float().mean().item()


for epoch in range(3):
    for inputs, targets in zip(x[:64].split(16), y[:64].split(16)):  # expect: MODE03
        optimizer.zero_grad()
        output = model(inputs)
        nn.functional.cross_entropy(output, targets).backward()
        optimizer.step()
    print(accuracy())
