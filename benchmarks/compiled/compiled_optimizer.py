"""The script compiles its model and its optimizer's step."""

import torch
from torch import nn

torch.manual_seed(15)
net = nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 16), nn.Hardswish(), nn.Linear(16, 2))
model = torch.compile(net)
optimizer = torch.optim.Adam(net.parameters(), lr=torch.tensor(1e-2), capturable=False)


@torch.compile
def update():
    optimizer.step()


x = torch.randn(32, 8)
y = x[:, :2].exp()
for step in range(4):
    loss = nn.functional.l1_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    update()
