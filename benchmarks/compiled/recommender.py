"""Factors of users and items, with users that occur several times in a batch."""

import torch
from torch import nn


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(9, 8), nn.Embedding(40, 8, padding_idx=0)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, users, items):
        return (self.users(users) * self.items(items)).sum(-1) + self.bias


torch.manual_seed(16)
model = Factors()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(4):
    users, items = torch.randint(0, 9, (64,)), torch.randint(0, 40, (64,))
    rating = ((users + items) % 5).float()
    loss = nn.functional.mse_loss(model(users, items), rating)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
