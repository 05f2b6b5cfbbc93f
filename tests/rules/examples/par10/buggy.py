import torch
from torch import nn

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
model = nn.Sequential(body, nn.Linear(8, 1))
body.requires_grad_(False)
body.eval()
optimizer = torch.optim.SGD(model[1].parameters(), lr=0.01)
for epoch in range(3):
    model.train()  # expect: PAR10
    for step in range(4):
        x = torch.randn(8, 4) + 1
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
