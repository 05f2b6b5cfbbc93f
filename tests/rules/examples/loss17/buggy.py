import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(6):
    x = torch.randn(24, 6)
    label = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    places = model(x)
    distance = torch.cdist(places, places)
    same = label[:, None] == label[None, :]
    near = (distance * (~same).float()).min(1).values  # expect: LOSS17
    far = (distance * same.float()).max(1).values
    loss = (far - near + 1).relu().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
