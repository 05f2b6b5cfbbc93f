"""Features of small pictures without labels: an online network predicts a slow one."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(2)
images = torch.rand(256, 3, 16, 16)


def encoder():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 32),
    )


online = encoder()
predictor = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
target = copy.deepcopy(online)
for p in target.parameters():
    p.requires_grad_(False)


@torch.no_grad()
def update_target(tau=0.99):
    for t, o in zip(target.parameters(), online.parameters()):
        t.data.mul_(tau).add_(t.data, alpha=1 - tau)  # expect: PAR15


def augment(x):
    x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(-1), x)
    return x + 0.1 * torch.randn_like(x)


def regression_loss(p, z):
    return 2 - 2 * F.cosine_similarity(p, z, dim=-1).mean()


optimizer = torch.optim.Adam([*online.parameters(), *predictor.parameters()], lr=3e-4)
for epoch in range(5):
    for idx in torch.randperm(256).split(32):
        v1, v2 = augment(images[idx]), augment(images[idx])
        with torch.no_grad():
            z1, z2 = target(v1), target(v2)
        loss = regression_loss(predictor(online(v1)), z2) + regression_loss(predictor(online(v2)), z1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_target()
