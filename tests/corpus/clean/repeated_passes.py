"""The same batch goes through a model several times: for several terms, for an average, with dropout."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)
net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
noisy = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))
optimizer = torch.optim.Adam([*net.parameters(), *noisy.parameters()], lr=1e-2)
for step in range(10):
    x = torch.randn(16, 12)
    y = x[:, :4].argmax(1)
    loss = F.cross_entropy(net(x), y) + 0.01 * net(x).square().mean()
    loss = loss + F.cross_entropy((net(x) + net(x)) / 2, y)
    loss = loss + (F.cross_entropy(net(x), y, reduction="none") + 0.01 * net(x).square().mean(1)).mean()
    first, second = noisy(x), noisy(x)  # dropout makes the difference
    loss = loss + F.cross_entropy(first, y) + F.mse_loss(first, second)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
