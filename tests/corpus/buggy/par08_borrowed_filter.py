"""Small transformer encoder with parameter groups for weight decay."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln_1 = nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, 2, batch_first=True)
        self.ln_2 = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        h = self.ln_1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Net(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.emb = nn.Embedding(30, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(2))
        self.out = nn.Linear(d, 3)

    def forward(self, x):
        h = self.emb(x)
        for b in self.blocks:
            h = b(h)
        return self.out(h.mean(1))


def make_optimizer(model, lr=1e-3, decay=0.1):
    no_decay = ["LayerNorm.bias", "LayerNorm.weight"]
    params = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in params if not any(k in n for k in no_decay)], "weight_decay": decay},
        {"params": [p for n, p in params if any(k in n for k in no_decay)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr)  # expect: PAR08


def main():
    torch.manual_seed(0)
    model = Net()
    opt = make_optimizer(model)
    for step in range(40):
        x = torch.randint(0, 30, (16, 8))
        y = x[:, 0] % 3
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(step, loss.item())


main()
