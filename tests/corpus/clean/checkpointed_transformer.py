"""Transformer encoder with activation checkpointing: every block is run again during backward."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(19)

VOCABULARY, LENGTH, WIDTH = 20, 16, 32


class Block(nn.Module):
    def __init__(self, width, heads=4, dropout=0.05):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.dropout(self.attention(h, h, h, need_weights=False)[0])
        return x + self.dropout(self.mlp(self.norm2(x)))


class CountingTransformer(nn.Module):
    """Says whether token 0 or token 1 is more frequent."""

    def __init__(self, depth=2):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(1, LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(depth))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens):
        x = self.token(tokens) + self.position
        for block in self.blocks:
            if self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(self.norm(x).mean(dim=1))


def make_set(count):
    tokens = torch.randint(0, VOCABULARY, (4 * count, LENGTH))
    tokens = torch.where(torch.rand(tokens.shape) < 0.4, torch.randint(0, 2, tokens.shape), tokens)
    zeros, ones = (tokens == 0).sum(1), (tokens == 1).sum(1)
    keep = (zeros != ones).nonzero().squeeze(1)[:count]
    return TensorDataset(tokens[keep], (ones > zeros)[keep].long())


train_loader = DataLoader(make_set(768), batch_size=64, shuffle=True)
test_loader = DataLoader(make_set(256), batch_size=128)
model = CountingTransformer()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()

for epoch in range(4):
    model.train()
    total = 0.0
    for tokens, labels in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(tokens), labels)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
    model.eval()
    with torch.no_grad():
        hits = sum((model(tokens).argmax(1) == labels).sum().item() for tokens, labels in test_loader)
    print(
        f"epoch {epoch}: loss {total / len(train_loader.dataset):.3f} "
        f"accuracy {hits / len(test_loader.dataset):.3f}"
    )
