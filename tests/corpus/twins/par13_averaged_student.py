"""Self-training with an averaged copy of the student."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(13)
x = torch.randn(512, 10)
y = (x[:, 0] * x[:, 1] > 0).long()


class Average:
    def __init__(self, source, decay=0.9):
        self.weights = copy.deepcopy(source)
        self.decay = decay
        self.history = copy.copy([])

    @torch.no_grad()
    def update(self, source):
        for kept, new in zip(self.weights.parameters(), source.parameters()):
            kept.data.mul_(self.decay).add_(new.data, alpha=1 - self.decay)

    @torch.no_grad()
    def guess(self, inputs):
        return self.weights(inputs).softmax(1)


net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
average = Average(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(48):
    rows = torch.randint(0, 512, (64,))
    logits = net(x[rows] + 0.2 * torch.randn(64, 10))
    loss = F.cross_entropy(logits[:16], y[rows[:16]])
    loss = loss + F.mse_loss(logits.softmax(1), average.guess(x[rows]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update(net)
print((average.guess(x).argmax(1) == y).float().mean().item())
