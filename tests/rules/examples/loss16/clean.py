import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(6):
    x = torch.randn(32, 4).requires_grad_(True)
    target = (x[:, 0] > 0).long()
    loss = criterion(model(x), target)
    (slope,) = torch.autograd.grad(loss, x, retain_graph=True)
    attacked = x + 0.1 * slope.sign()
    loss = loss + criterion(model(attacked), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
