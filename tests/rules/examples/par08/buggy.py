import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1))
named = list(model.named_parameters())
skip = ("LayerNorm.weight", "LayerNorm.bias")
groups = [
    {"params": [p for n, p in named if not n.endswith(skip)], "weight_decay": 0.1},
    {"params": [p for n, p in named if n.endswith(skip)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=0.01)  # expect: PAR08
for step in range(6):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
