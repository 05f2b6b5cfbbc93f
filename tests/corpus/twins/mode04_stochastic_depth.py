"""Residual blocks with stochastic depth."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(11)


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.keep = 1 - p

    def forward(self, x):
        if not self.training:
            return x
        mask = torch.rand(x.shape[0], 1) < self.keep
        return x * mask / self.keep


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(6, 32)
        self.f = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(3))
        self.drop, self.out = DropPath(0.2), nn.Linear(32, 2)

    def forward(self, x):
        h = self.inp(x)
        for f in self.f:
            h = h + self.drop(f(h))
        return self.out(h)


x = torch.randn(300, 6)
y = (x[:, 0] > x[:, 1]).long()
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(4):
    net.train()
    for idx in torch.randperm(240).split(40):
        loss = F.cross_entropy(net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        print(epoch, (net(x[240:]).argmax(1) == y[240:]).float().mean().item())
