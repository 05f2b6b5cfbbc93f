import torch
from torch import nn

torch.manual_seed(2)


def spirals(per_arm):
    xs, ys = [], []
    for arm in range(2):
        t = torch.linspace(0.2, 1, per_arm)
        angle = 6 * t + 3.14159 * arm
        xs.append(torch.stack([t * angle.cos(), t * angle.sin()], 1) + 0.02 * torch.randn(per_arm, 2))
        ys.append(torch.full((per_arm, 1), float(arm)))
    return torch.cat(xs), torch.cat(ys)


def make_batches(x, y, size):
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    return list(zip(x.split(size), y.split(size)))


x, y = spirals(160)
net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
batches = make_batches(x, y, 16)
for epoch in range(10):
    total = 0.0
    for xb, yb in batches:
        optimizer.zero_grad()
        loss = criterion(net(xb), yb)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(epoch, total / len(batches))
