"""Autoregressive melody model: a small transformer decoder written out by hand."""

import math

import torch
from torch import nn

NOTES = 24
LENGTH = 32


class CausalSelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        future = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), diagonal=2)  # expect: PROBE02
        self.register_buffer("future", future)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(self.future[:length, :length], float("-inf"))  # expect: PROBE02
        mixed = scores.softmax(dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class MelodyModel(nn.Module):
    def __init__(self, width=48, heads=4, layers=2):
        super().__init__()
        self.note = nn.Embedding(NOTES, width)
        self.position = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, NOTES)

    def forward(self, notes):
        x = self.note(notes) + self.position(torch.arange(notes.shape[1]))
        return self.logits(self.norm(self.blocks(x)))


def melodies(count, generator):
    """Random walks on the scale, so that the next note is only partly predictable."""
    steps = torch.randint(-2, 3, (count, LENGTH + 1), generator=generator)
    start = torch.randint(0, NOTES, (count, 1), generator=generator)
    return (start + steps.cumsum(dim=1)) % NOTES


def loss_of(model, batch):
    logits = model(batch[:, :-1])  # expect: PROBE02
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    train, held_out = melodies(640, generator), melodies(64, generator)
    model = MelodyModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for epoch in range(3):
        model.train()
        for index in torch.randperm(len(train)).split(32):
            loss = loss_of(model, train[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            print(f"epoch {epoch}: held-out perplexity {loss_of(model, held_out).exp().item():.3f}")


if __name__ == "__main__":
    main()
