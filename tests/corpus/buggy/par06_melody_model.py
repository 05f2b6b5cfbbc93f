"""Next-note prediction for synthetic melodies with a pre-norm causal transformer written out by hand."""

import torch
import torch.nn.functional as F
from torch import nn

NOTES, LENGTH = 16, 24


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)  # expect: PAR06
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm1(x))  # expect: PAR06


class MelodyModel(nn.Module):
    def __init__(self, width=32, heads=4, depth=2):
        super().__init__()
        self.notes = nn.Embedding(NOTES, width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, NOTES)

    def forward(self, notes):
        x = self.notes(notes) + self.places(torch.arange(notes.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def melodies(n, generator):
    start = torch.randint(NOTES, (n, 1), generator=generator)
    interval = torch.randint(1, 5, (n, 1), generator=generator)
    steps = torch.arange(LENGTH + 1)
    slip = (torch.rand(n, LENGTH + 1, generator=generator) < 0.1).long()
    return (start + interval * steps + slip) % NOTES


def loss_on(model, batch):
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.reshape(-1, NOTES), batch[:, 1:].reshape(-1))


def main():
    torch.manual_seed(60)
    generator = torch.Generator().manual_seed(60)
    data, test = melodies(768, generator), melodies(96, generator)
    model = MelodyModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for epoch in range(4):
        model.train()
        total = 0.0
        for rows in torch.randperm(len(data)).split(48):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_on(model, data[rows])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        model.eval()
        with torch.no_grad():
            held_out = loss_on(model, test).item()
        print(f"epoch {epoch}: train {total / len(data):.3f}  test {held_out:.3f}")


if __name__ == "__main__":
    main()
