"""False alarms are expensive: rare positives count less on purpose. Frequent ones count less in a second task."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(34)
x = torch.randn(960, 8)
rare = (x[:, 0] > 1.0).float()
tags = torch.stack([x[:, 1] > -1.1, x[:, 2] > -0.9, x[:, 3] > -1.3], 1).float()
ratio = (len(tags) - tags.sum(0)) / tags.sum(0)
alarm, tagger = nn.Linear(8, 1), nn.Linear(8, 3)
optimizer = torch.optim.Adam([*alarm.parameters(), *tagger.parameters()], lr=0.01)
careful = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(0.2))
for epoch in range(4):
    for rows in torch.randperm(len(x)).split(120):
        loss = careful(alarm(x[rows]).squeeze(1), rare[rows])
        loss = loss + F.binary_cross_entropy_with_logits(tagger(x[rows]), tags[rows], pos_weight=ratio)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
