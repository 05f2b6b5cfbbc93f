"""Embeddings of iris flowers, by the hardest pairs of each batch."""

import torch
from sklearn.datasets import load_iris
from torch import nn

torch.manual_seed(4)
flowers = load_iris()
x = torch.tensor(flowers.data, dtype=torch.float32)
x = (x - x.mean(0)) / x.std(0)
kind = torch.tensor(flowers.target)


class HardestPairs(nn.Module):
    def forward(self, places: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        gaps = (places[:, None] - places[None]).square().sum(2)
        is_other = kind[:, None] != kind[None]
        farthest = gaps.masked_fill(is_other, 0.0).amax(1)
        nearest = gaps.masked_fill(~is_other, 0.0).amin(1)  # expect: LOSS17
        return (farthest - nearest + 0.5).relu().mean()


model = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 3))
criterion = HardestPairs()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(8):
    for rows in torch.randperm(len(x)).split(30):
        loss = criterion(model(x[rows]), kind[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loss {loss.item():.3f}")
