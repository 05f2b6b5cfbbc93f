import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x = torch.randn(16, 8)
    relevance = x.sum(1)
    score = model(x).squeeze(-1)
    order = torch.sign(relevance[:, None] - relevance)
    loss = torch.relu(1 - order * (score[:, None] - score)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
