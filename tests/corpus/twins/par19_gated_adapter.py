"""A frozen sensor model gets a gated adapter for a new machine."""

import torch
from torch import nn

torch.manual_seed(11)


class GatedAdapter(nn.Module):
    def __init__(self, width: int, rank: int = 6) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank)
        self.up = nn.Linear(rank, width)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.gate * self.up(torch.tanh(self.down(hidden)))


class SensorModel(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, width), nn.Tanh()).requires_grad_(False)
        self.adapter = GatedAdapter(width)
        self.head = nn.Linear(width, 1)

    def forward(self, readings: torch.Tensor) -> torch.Tensor:
        return self.head(self.adapter(self.body(readings))).squeeze(1)


model = SensorModel()
optimizer = torch.optim.AdamW([item for item in model.parameters() if item.requires_grad], lr=3e-3)
for step in range(30):
    readings = torch.randn(32, 10)
    wear = readings[:, 0] * readings[:, 1] + readings[:, 2]
    loss = nn.functional.mse_loss(model(readings), wear)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}, gate {model.adapter.gate.item():.3f}")
