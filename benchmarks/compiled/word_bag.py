"""A text classifier: EmbeddingBag over lists of other lengths, dropout, two layers."""

import torch
from torch import nn


class WordBag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 16, mode="mean")
        self.drop = nn.Dropout(0.2)
        self.hidden = nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, words, offsets):
        x = self.drop(self.bag(words, offsets))
        return self.head(torch.relu(self.hidden(x)))


torch.manual_seed(6)
model = WordBag()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
words = torch.randint(0, 50, (60,))
offsets = torch.tensor([0, 7, 9, 20, 21, 33, 40, 52])
labels = torch.randint(0, 3, (8,))
for step in range(4):
    loss = nn.functional.cross_entropy(model(words, offsets), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
