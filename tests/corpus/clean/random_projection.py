"""Layers that stay frozen on purpose beside loaded ones: random features, a teacher, a later phase."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)


class Classifier(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.old = copy.deepcopy(backbone)
        self.fourier = nn.Linear(16, 32)
        self.head = nn.Linear(32, 3)
        for p in self.fourier.parameters():
            p.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            kept = self.old(x)
        features = self.backbone(x)
        return self.head(self.fourier(features).cos()), F.mse_loss(features, kept)


source = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
backbone.load_state_dict(source.state_dict())
model = Classifier(backbone)
for p in (*model.backbone[0].parameters(), *model.old.parameters()):
    p.requires_grad_(False)
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
for step in range(20):
    if step == 10:
        for p in model.backbone[0].parameters():
            p.requires_grad_(True)
        optimizer.add_param_group({"params": list(model.backbone[0].parameters())})
    x = torch.randn(32, 8)
    logits, drift = model(x)
    loss = F.cross_entropy(logits, x[:, :3].argmax(1)) + 0.1 * drift
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
