"""A feature normaliser written by hand."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Standardise(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.gain, self.shift, self.eps = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim)), eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, keepdim=True, unbiased=False)
        return self.gain * (x - mean) / torch.sqrt(var + self.eps) + self.shift


class Net(nn.Module):
    def __init__(self, d=10, h=32):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(d, h), Standardise(h), nn.Linear(h, 3)

    def forward(self, x):
        return self.b(torch.relu(self.norm(self.a(x))))


torch.manual_seed(91)
x = torch.randn(420, 10)
y = x[:, :3].argmax(1)
loader = DataLoader(TensorDataset(x[:360], y[:360]), batch_size=36, shuffle=True)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(4):
    net.train()
    for xb, yb in loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(xb), yb)
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        print(epoch, (net(x[360:]).argmax(1) == y[360:]).float().mean().item())
