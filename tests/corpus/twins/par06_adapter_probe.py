"""An adapter and a classifier on the features of a frozen encoder."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(8)


class Probe(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.adapter = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        self.classifier = nn.Linear(32, 4)

    def forward(self, x):
        with torch.no_grad():
            h = self.encoder(x)
        h = self.adapter(h)
        return self.classifier(h)


encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32))
model = Probe(encoder)
new = [p for n, p in model.named_parameters() if not n.startswith("encoder")]
optimizer = torch.optim.Adam(new, lr=2e-3)
x = torch.randn(300, 16)
y = torch.randint(0, 4, (300,))
for epoch in range(6):
    for idx in torch.randperm(300).split(50):
        loss = F.cross_entropy(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
