"""Contrastive learning on rows of a table, with noise and gaps."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(11)
data = torch.randn(512, 24)


def jitter(batch, seed):
    g = torch.Generator().manual_seed(seed)
    noise = 0.3 * torch.randn(batch.shape, generator=g)
    keep = (torch.rand(batch.shape, generator=g) > 0.2).float()
    return (batch + noise) * keep


encoder = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64))
projector = nn.Linear(64, 16)
params = list(encoder.parameters()) + list(projector.parameters())
optimizer = torch.optim.SGD(params, lr=0.05, momentum=0.9)
step = 0
for epoch in range(5):
    for idx in torch.randperm(len(data)).split(64):
        batch = data[idx]
        first = jitter(batch, seed=step)
        second = jitter(batch, seed=step)  # expect: DATA13
        za, zb = projector(encoder(first)), projector(encoder(second))
        za, zb = F.normalize(za, dim=1), F.normalize(zb, dim=1)
        logits = za @ zb.T / 0.2
        loss = F.cross_entropy(logits, torch.arange(len(idx)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
