"""Attention written by hand, sequence first: softmax over keys (last axis) and over time (axis 0) for
pooling.
"""

import math

import torch
from torch import nn

torch.manual_seed(109)

LENGTH, FEATURES, CLASSES, BATCH = 14, 8, 4, 64


class SelfAttention(nn.Module):
    """Takes and returns (time, batch, width)."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        time, batch, width = x.shape
        q, k, v = (
            part.view(time, batch, self.heads, -1).permute(1, 2, 0, 3)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        mixed = torch.softmax(scores, dim=-1) @ v
        return self.out(mixed.permute(2, 0, 1, 3).reshape(time, batch, width))


class AttentionPool(nn.Module):
    """Weighted mean over time; the weights of each sequence sum to one over axis 0."""

    def __init__(self, width):
        super().__init__()
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, x):
        weight = torch.softmax(self.score(torch.tanh(x)), dim=0)
        return (weight * x).sum(dim=0)


class Classifier(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, 1, width))
        self.norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads=4)
        self.pool = AttentionPool(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        h = self.embed(x) + self.position
        h = h + self.attention(self.norm(h))
        return self.head(self.pool(h))


def draw(count, motifs):
    """Noise with one of four motifs at a random time; shape (time, batch, features)."""
    label = torch.randint(0, CLASSES, (count,))
    when = torch.randint(0, LENGTH, (count,))
    x = torch.randn(LENGTH, count, FEATURES)
    x[when, torch.arange(count)] += motifs[label]
    return x, label


motifs = 3 * torch.randn(CLASSES, FEATURES)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.CrossEntropyLoss()

for step in range(150):
    model.train()
    x, label = draw(BATCH, motifs)
    optimizer.zero_grad()
    loss = criterion(model(x), label)
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        model.eval()
        with torch.no_grad():
            x, label = draw(300, motifs)
            accuracy = (model(x).argmax(dim=-1) == label).float().mean().item()
        print(f"step {step}: loss {loss.item():.3f} fresh accuracy {accuracy:.3f}")
