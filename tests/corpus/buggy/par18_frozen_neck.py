"""A classifier with a new neck and head on a backbone that was loaded."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)

    def forward(self, x):
        return F.relu(self.conv2(F.max_pool2d(F.relu(self.conv1(x)), 2))).mean((2, 3))


class Classifier(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.neck = nn.Linear(16, 32)
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        return self.head(F.relu(self.neck(self.backbone(x))))


pretrained = Backbone()
torch.save(pretrained.state_dict(), "backbone.pt")
backbone = Backbone()
backbone.load_state_dict(torch.load("backbone.pt", weights_only=True))
model = Classifier(backbone, 5)
for name, p in model.named_parameters():
    p.requires_grad = name.startswith("head")  # expect: PAR18
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
x = torch.rand(320, 1, 12, 12)
y = torch.randint(0, 5, (320,))
for epoch in range(4):
    for idx in torch.randperm(320).split(32):
        loss = F.cross_entropy(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
