import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(96, 6)
y = (x[:, 0] > 0).long()
body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1))
model = nn.Sequential(body, nn.Linear(16, 2))
body.requires_grad_(False)
optimizer = torch.optim.Adam(model[1].parameters())


def accuracy():
    model.eval()
    with torch.no_grad():
        return (model(x[64:]).argmax(1) == y[64:]).float().mean().item()


for epoch in range(3):
    model.train()
    body.eval()
    for inputs, targets in zip(x[:64].split(16), y[:64].split(16)):
        optimizer.zero_grad()
        output = model(inputs)
        nn.functional.cross_entropy(output, targets).backward()
        optimizer.step()
    print(accuracy())
