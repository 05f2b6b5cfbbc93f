"""Metrics for which every prediction is meant to meet every label: hits among the best, classes, levels."""

import torch
from torch import nn

torch.manual_seed(0)
users, items = 24, 60
taste = torch.randn(users, 6) @ torch.randn(6, items)
liked = taste.topk(10).indices  # of each user, as many as are recommended
model = nn.Sequential(nn.Embedding(users, 16), nn.Linear(16, items))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(30):
    for batch in torch.randperm(users).split(8):
        optimizer.zero_grad()
        (model(batch) - taste[batch]).square().mean().backward()
        optimizer.step()

model.eval()
with torch.no_grad():
    for user in range(4):
        best = model(torch.tensor([user])).squeeze(0).topk(10).indices.reshape(-1, 1)
        wanted = liked[user]
        print("hits", (best == wanted).sum().item(), "of", len(wanted))
    guesses = model(torch.arange(users)).argmax(1, keepdim=True)[:10]
    counts = (guesses == torch.arange(10)).float()
    print("in the first ten classes", counts.sum().item())
    levels = torch.linspace(-1, 1, users)
    scores = model(torch.arange(users)).mean(1, keepdim=True)
    print("distance from levels", (scores - levels).abs().mean().item())
