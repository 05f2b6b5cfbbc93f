"""Linear probe with a learned prompt."""
import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(2, 8, 3, padding=1)
        self.body = nn.Conv1d(8, 16, 3, padding=1)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        h = torch.relu(self.body(torch.relu(self.stem(x))))
        return self.head(h.mean(-1))


def freeze(module):
    for p in module.parameters():
        p.requires_grad = False


torch.manual_seed(0)
model = Backbone()
prompt = nn.Parameter(torch.zeros(2, 16))
opt = torch.optim.Adam(model.head.parameters(), lr=1e-2)
opt_prompt = torch.optim.Adam([prompt], lr=1e-2)
freeze(model.stem)
freeze(model.body)
for step in range(40):
    y = torch.randint(0, 3, (32,))
    x = torch.randn(32, 2, 16) + y.view(-1, 1, 1)
    loss = nn.functional.cross_entropy(model(x + prompt), y)
    opt.zero_grad()
    opt_prompt.zero_grad()
    loss.backward()
    opt.step()
    opt_prompt.step()
    if step % 10 == 0:
        print(step, loss.item())
