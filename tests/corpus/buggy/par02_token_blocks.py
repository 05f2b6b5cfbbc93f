import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


def clones(make, n):
    block = make()
    return nn.ModuleList([block for _ in range(n)])  # expect: PAR02


class Classifier(nn.Module):
    def __init__(self, vocab=20, d=16, depth=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(0.02 * torch.randn(10, d))
        self.blocks = clones(lambda: Block(d, 2), depth)  # expect: PAR02
        self.head = nn.Linear(d, 2)

    def forward(self, ids):
        x = self.emb(ids) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.head(x.mean(1))


torch.manual_seed(0)
model = Classifier()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(30):
    ids = torch.randint(0, 20, (32, 10))
    y = (ids.float().mean(1) > 9.5).long()
    loss = nn.functional.cross_entropy(model(ids), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(step, loss.item())
