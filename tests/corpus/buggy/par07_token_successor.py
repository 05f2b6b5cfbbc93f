"""Learns which token follows which, all in bfloat16."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(16)


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 64)
        self.norm = nn.LayerNorm(64)
        self.mlp = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        self.out = nn.Linear(64, 50)

    def forward(self, t):
        h = self.embed(t)
        return self.out(h + self.mlp(self.norm(h)))


model = Tiny().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01)
succ = torch.randperm(50)
for step in range(40):
    tokens = torch.randint(0, 50, (16, 8))
    logits = model(tokens).float()
    loss = F.cross_entropy(logits.flatten(0, 1), succ[tokens].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # expect: PAR07
