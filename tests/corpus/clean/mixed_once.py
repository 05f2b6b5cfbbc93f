"""Batches cut in stored order from data that are mixed once, then labels that come in turns."""
import torch
from torch import nn

torch.manual_seed(0)
y = torch.arange(3).repeat_interleave(100)
x = torch.randn(300, 6) + y[:, None]
mixed = torch.randperm(300)
x, y = x[mixed], y[mixed]
net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for epoch in range(3):
    for i in range(0, 300, 30):
        loss = nn.functional.cross_entropy(net(x[i:i + 30]), y[i:i + 30])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())

real, fake = torch.ones(16), torch.zeros(16)
critic = nn.Linear(6, 1)
opt = torch.optim.SGD(critic.parameters(), lr=0.05)
for step in range(20):
    for label, shift in ((real, 1.0), (fake, -1.0)):
        sample = torch.randn(16, 6) + shift
        loss = nn.functional.binary_cross_entropy_with_logits(critic(sample).squeeze(1), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
print(loss.item())
