# meters: weighted in evaluation, an exponential one for the console, plain means while training
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


class Smooth:
    def __init__(self, beta=0.9):
        self.beta, self.avg = beta, None

    def update(self, value):
        self.avg = value if self.avg is None else self.beta * self.avg + (1 - self.beta) * value


torch.manual_seed(3)
x = torch.randn(250, 6)
y = x[:, 0] - x[:, 1]
train = DataLoader(TensorDataset(x[:180], y[:180]), batch_size=32, shuffle=True)
test = DataLoader(TensorDataset(x[180:], y[180:]), batch_size=32)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
smooth = Smooth()
for epoch in range(4):
    running, losses = AverageMeter(), AverageMeter()
    model.train()
    for a, b in train:
        loss = F.mse_loss(model(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        running.update(loss.item())
    model.eval()
    with torch.no_grad():
        for a, b in test:
            value = F.mse_loss(model(a), b).item()
            losses.update(value, a.size(0))
            smooth.update(value)
    print(epoch, running.avg, losses.avg, smooth.avg)
