"""Permutations that do not belong together: backgrounds, wrong labels to push away, and shuffled pairs."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(12)
time = torch.linspace(0, 6.28, 24)
labels = torch.arange(240) % 3
waves = torch.sin((labels + 1).unsqueeze(1) * time) + 0.1 * torch.randn(240, 24)
model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 3))
critic = nn.Sequential(nn.Linear(27, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam([*model.parameters(), *critic.parameters()], lr=2e-3)
for step in range(48):
    rows = torch.randperm(240)[:40]
    x, y = waves[rows], labels[rows]
    scores = model(x + 0.1 * x[torch.randperm(40)])
    wrong = y[torch.randperm(40)]
    away = F.nll_loss(torch.log1p(-scores.softmax(1).clamp(max=0.99)), wrong)
    classes = F.one_hot(y, 3).float()
    joint = critic(torch.cat([x, classes], 1))
    product = critic(torch.cat([x[torch.randperm(40)], classes[torch.randperm(40)]], 1))
    information = joint.mean() - product.exp().mean().log()
    loss = F.cross_entropy(scores, y) + 0.1 * away - 0.1 * information
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
