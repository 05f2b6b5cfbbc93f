"""Click-through model with hashed categorical features."""
import zlib

import torch
import torch.nn as nn

BUCKETS = 64
CITIES = ["paris", "oslo", "rome", "lima", "cairo", "quito", "delhi", "perth"]
DEVICES = ["phone", "tablet", "laptop", "watch"]


def bucket(field, value):
    return hash(f"{field}={value}") % BUCKETS  # expect: REPRO02


def impressions(n):
    rows, clicks = [], []
    for _ in range(n):
        c, d = int(torch.randint(8, ())), int(torch.randint(4, ()))
        chance = 0.8 if (c + d) % 3 == 0 else 0.2
        rows.append([bucket("city", CITIES[c]), bucket("device", DEVICES[d])])
        clicks.append(float(torch.rand(()) < chance))
    return torch.tensor(rows), torch.tensor(clicks)


class FM(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.linear = nn.Embedding(BUCKETS, 1)
        self.factors = nn.Embedding(BUCKETS, dim)
        nn.init.normal_(self.factors.weight, std=0.1)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        v = self.factors(x)
        pair = 0.5 * (v.sum(1) ** 2 - (v ** 2).sum(1)).sum(1)
        return self.bias + self.linear(x).sum((1, 2)) + pair


torch.manual_seed(0)
x, y = impressions(800)
model = FM()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
for epoch in range(4):
    model.train()
    for rows in torch.randperm(640).split(40):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        test = nn.functional.binary_cross_entropy_with_logits(model(x[640:]), y[640:])
    print(epoch, loss.item(), test.item())
