"""A loaded encoder is trained close to its first features: the fixed copy is the goal."""

import copy
import torch
from torch import nn

torch.manual_seed(1)
encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
encoder.load_state_dict(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).state_dict())
target_encoder = copy.deepcopy(encoder).eval()
head = nn.Linear(8, 2)
opt = torch.optim.Adam([*encoder.parameters(), *head.parameters()], 1e-2)
for i in range(15):
    x = torch.randn(16, 8)
    with torch.no_grad():
        keep = target_encoder(x)
    h = encoder(x)
    loss = nn.functional.cross_entropy(head(h), (x[:, 0] > 0).long()) + nn.functional.mse_loss(h, keep)
    opt.zero_grad()
    loss.backward()
    opt.step()
