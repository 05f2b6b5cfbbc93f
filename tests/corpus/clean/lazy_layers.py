"""Lazy modules: shapes are found on the first batch."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
y = torch.randint(0, 3, (200,))
x = torch.randn(200, 2, 8, 8) + y.view(-1, 1, 1, 1)
loader = DataLoader(TensorDataset(x[:160], y[:160]), batch_size=20, shuffle=True)
model = nn.Sequential(nn.LazyConv2d(8, 3, bias=False), nn.LazyBatchNorm2d(), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(3))
print(model)
with torch.no_grad():
    model.eval()
    model(x[:2])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    model.train()
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(epoch, (model(x[160:]).argmax(1) == y[160:]).float().mean().item())
