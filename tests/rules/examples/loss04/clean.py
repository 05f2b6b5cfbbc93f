import torch
from torch import nn

torch.manual_seed(0)
attend, model = nn.Linear(8, 3), nn.Linear(24, 1)
optimizer = torch.optim.Adam([*attend.parameters(), *model.parameters()])
for step in range(4):
    bag = torch.randn(16, 8)
    weights = torch.softmax(attend(bag), dim=0)
    pooled = weights.T @ bag
    loss = (model(pooled.flatten()) - bag[:, 0].max()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
