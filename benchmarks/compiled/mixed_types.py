"""Features of several types: float64, bfloat16, integers and booleans."""

import torch
from torch import nn


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.place = nn.Embedding(7, 8)
        self.short = nn.Linear(6, 8).bfloat16()
        self.long = nn.Linear(3, 8).double()
        self.head = nn.Linear(8, 1)

    def forward(self, amounts, words, place, is_new):
        hidden = self.long(amounts).float() + self.short(words.bfloat16()).float() + self.place(place)
        hidden = torch.where(is_new[:, None], hidden, hidden * 0.5)
        return self.head(torch.tanh(hidden)).squeeze(1)


torch.manual_seed(11)
model = Mixed()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
amounts, words = torch.randn(20, 3, dtype=torch.float64), torch.randn(20, 6)
place, is_new = torch.randint(0, 7, (20,)), torch.rand(20) > 0.5
for step in range(4):
    loss = nn.functional.huber_loss(model(amounts, words, place, is_new), amounts[:, 0].float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
