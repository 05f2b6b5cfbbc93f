"""Recurrent encoder and a linear head on short sequences."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.GRU(4, 16, batch_first=True)
        self.head = nn.Linear(16, 1)

    def encode(self, x):
        h = self.encoder(x)[0][:, -1]
        return h

    def forward(self, x):
        return self.head(self.encode(x))


net = Model()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
for i in range(40):
    x = torch.randn(32, 7, 4)
    loss = F.mse_loss(net(x), x.mean((1, 2)).unsqueeze(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 10 == 0:
        print(i, loss.item())
