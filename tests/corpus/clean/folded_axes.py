"""Reshapes and softmaxes that look wrong: frames put together, heads before the batch, clusters, slots."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)


class CRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        self.rnn = nn.GRU(6 * 8, 16, batch_first=True)
        self.mix = nn.Linear(32, 16)
        self.heads = 4
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.out = nn.Linear(16, 3)

    def attend(self, x):
        t, b, c = x.transpose(0, 1).shape
        x = x.transpose(0, 1)
        q = self.q(x).contiguous().view(t, b * self.heads, c // self.heads).transpose(0, 1)
        k = self.k(x).contiguous().view(t, b * self.heads, c // self.heads).transpose(0, 1)
        v = self.v(x).contiguous().view(t, b * self.heads, c // self.heads).transpose(0, 1)
        w = torch.bmm(q, k.transpose(1, 2)).softmax(dim=-1)
        y = torch.bmm(w, v).transpose(0, 1).contiguous().view(t, b, c)
        return y.transpose(0, 1)

    def forward(self, x):
        h = F.relu(self.conv(x))
        b, c, f, t = h.shape
        h = h.permute(0, 3, 1, 2).reshape(b, t, c * f)
        h = self.rnn(h)[0]
        b, t, d = h.shape
        h = self.mix(h.reshape(b, t // 2, d * 2))
        h = h + self.attend(h)
        flat = h.reshape(b, -1)
        return self.out(flat.view(b, -1, 16).mean(1))


net = CRNN()
opt = torch.optim.Adam(net.parameters(), 1e-3)
for step in range(4):
    x = torch.randn(4, 1, 8, 32)
    loss = F.cross_entropy(net(x), torch.randint(0, 3, (4,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
