import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential()
model.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
model.body.load_state_dict(nn.Sequential(nn.Linear(8, 16), nn.ReLU()).state_dict())
model.projection = nn.Linear(16, 16).requires_grad_(False)  # random on purpose
model.head = nn.Linear(16, 2)
for p in model.body.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
for step in range(4):
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
