import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.BCEWithLogitsLoss()
for step in range(4):
    x = torch.randn(16, 8)
    loss = criterion(model(x), (x[:, :1] > 0).float())  # expect: LOSS02
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
