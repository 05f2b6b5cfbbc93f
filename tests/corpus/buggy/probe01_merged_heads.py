"""Multi-head attention with a wrong reshape."""
import math
import torch
from torch import nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.heads, self.dim = heads, dim

    def forward(self, x):
        b, t, d = x.shape
        hd = d // self.heads

        def split(y):
            return y.view(b, t, self.heads, hd).transpose(1, 2)

        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        w = F.softmax(q @ k.transpose(-1, -2) / math.sqrt(hd), dim=-1)
        y = w @ v
        y = y.permute(2, 0, 1, 3).reshape(b, t, d)  # expect: PROBE01
        return self.o(y)


class Model(nn.Module):
    def __init__(self, vocab=30, dim=32):
        super().__init__()
        self.e = nn.Embedding(vocab, dim)
        self.att = SelfAttention(dim, 4)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = self.e(ids)
        return self.out(self.norm(h + self.att(h)))


torch.manual_seed(101)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
for step in range(40):
    ids = torch.randint(0, 30, (12, 8))
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flip(1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
