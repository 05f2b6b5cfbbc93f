import torch
from torch import nn

torch.manual_seed(0)
model = nn.GRU(1, 16, batch_first=True)
head = nn.Linear(16, 1)
copier = nn.Sequential(nn.Linear(8, 3), nn.Linear(3, 8))
weights = [*model.parameters(), *head.parameters(), *copier.parameters()]
optimizer = torch.optim.Adam(weights, lr=0.01)
for step in range(12):
    x = torch.randn(32, 8, 1)
    states, _ = model(x)
    remembered = nn.functional.mse_loss(head(states[:, -1]), x[:, 0])
    copied = nn.functional.mse_loss(copier(x[..., 0]), x[..., 0])
    optimizer.zero_grad()
    (remembered + copied).backward()
    optimizer.step()
