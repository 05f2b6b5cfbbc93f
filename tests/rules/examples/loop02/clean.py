import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in range(12):
    x = torch.randn(8, 4)
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    with torch.no_grad():  # to the worst point nearby, as sharpness-aware minimisation does
        away = [0.05 * p.grad / (p.grad.norm() + 1e-12) for p in model.parameters()]
        for p, offset in zip(model.parameters(), away):
            p.add_(offset)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    with torch.no_grad():
        for p, offset in zip(model.parameters(), away):
            p.sub_(offset)
    optimizer.step()
    optimizer.zero_grad()
