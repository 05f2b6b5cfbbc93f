"""A small CNN on random pictures."""

import torch
import torch.nn.functional as F
from ranges import Ranges
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(x))
        x = F.relu(self.second(x))
        return self.head(x.mean((2, 3)))


part = Ranges()
data = TensorDataset(torch.randn(512, 3, 24, 24), torch.randint(0, 10, (512,)))
loader = DataLoader(data, batch_size=32, shuffle=True)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for x, y in part.batches(loader):
    with part("forward"):
        loss = F.cross_entropy(model(x), y)
    with part("optimizer"):
        optimizer.zero_grad()
    with part("backward"):
        loss.backward()
    with part("optimizer"):
        optimizer.step()
    part.end_step()
