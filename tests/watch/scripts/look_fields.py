"""Two steps in which every kind of operation is asked for at a known line."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((4,), float(index)), index % 2  # -> full


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh())  # -> model
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, 2)

    def forward(self, x):
        x = self.body(x)  # -> body
        return self.head(self.drop(x))  # -> head


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for x, y in DataLoader(Rows(), batch_size=2):
    loss = F.cross_entropy(model(x), y)  # -> loss
    optimizer.zero_grad()
    loss.backward()  # -> backward
    optimizer.step()  # -> step
    source = torch.Generator().manual_seed(1)
    drawn = torch.rand(3, generator=source)  # -> drawn
    F.dropout(drawn, 0.5, training=False)
    torch.dropout(drawn, 0.0, True)  # -> kept
    drawn[1:].add_(1)  # -> changed
    total = drawn.sum()  # -> total
    wide = torch.zeros(300_000, dtype=torch.bfloat16)  # -> wide
print("loss", loss.item().hex())
