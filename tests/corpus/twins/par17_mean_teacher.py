"""A mean teacher for a few labels and many inputs without one."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)
x = torch.randn(512, 10)
y = (x[:, 0] * x[:, 1] > 0).long()
labelled = torch.zeros(512, dtype=torch.bool)
labelled[:64] = True


class MeanTeacher:
    def __init__(self, model, decay):
        self.model = copy.deepcopy(model)
        self.decay = decay

    @torch.no_grad()
    def update(self, student):
        for t, s in zip(self.model.parameters(), student.parameters()):
            t.lerp_(s, 1 - self.decay)

    def __call__(self, inputs):
        with torch.no_grad():
            return self.model(inputs)


net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
initial = net
net = copy.deepcopy(net)
teacher = MeanTeacher(net, 0.95)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(10):
    for idx in torch.randperm(512).split(64):
        xb, yb, mask = x[idx], y[idx], labelled[idx]
        logits = net(xb + 0.1 * torch.randn_like(xb))
        consistency = F.mse_loss(logits.softmax(1), teacher(xb).softmax(1))
        supervised = F.cross_entropy(logits[mask], yb[mask]) if mask.any() else 0.0
        loss = supervised + consistency
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        teacher.update(net)
print(float((teacher(x).argmax(1) == y).float().mean()))
