"""Is the first token larger than the last one, by attention."""

import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(26)


class SelfAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        weights = scores.softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, d))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        self.position = nn.Parameter(torch.randn(12, 32) * 0.02)
        self.attention, self.norm = SelfAttention(32, 4), nn.LayerNorm(32)
        self.head = nn.Linear(32, 2)

    def forward(self, t):
        x = self.embed(t) + self.position
        return self.head((x + self.attention(self.norm(x))).mean(1))


net = Net()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(40):
    t = torch.randint(0, 20, (32, 12))
    loss = F.cross_entropy(net(t), (t[:, 0] > t[:, -1]).long())
    opt.zero_grad()
    loss.backward()
    opt.step()
