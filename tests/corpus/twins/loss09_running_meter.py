"""A regression with a runner and a meter."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n

    @property
    def mean(self):
        return self.total / self.count


class Runner:
    def __init__(self, net, lr=0.01):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, nesterov=True)

    def epoch(self, loader):
        self.net.train()
        for x, y in loader:
            loss = F.mse_loss(self.net(x).squeeze(1), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

    @torch.inference_mode()
    def test(self, loader):
        self.net.eval()
        meter = Meter()
        for x, y in loader:
            error = F.mse_loss(self.net(x).squeeze(1), y)
            meter.update(error.item(), n=x.size(0))
        return meter.mean


torch.manual_seed(6)
x = torch.randn(210, 5)
y = x[:, 0] - 2 * x[:, 1] + 0.1 * torch.randn(210)
train = DataLoader(TensorDataset(x[:160], y[:160]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(x[160:], y[160:]), batch_size=16)
runner = Runner(nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)))
for e in range(4):
    runner.epoch(train)
    print("test mse", runner.test(test))
