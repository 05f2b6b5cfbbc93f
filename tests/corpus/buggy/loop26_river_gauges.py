"""Water levels at five gauges are forecast hour by hour by one recurrent cell."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(19)
HOURS, GAUGES = 8, 5


def make_levels(num):
    phase = torch.rand(num, 1, GAUGES) * 6.28
    speed = torch.rand(num, 1, 1) * 0.5 + 0.3
    hours = torch.arange(HOURS + 1.0).view(1, -1, 1)
    return torch.sin(speed * hours + phase) + 0.05 * torch.randn(num, HOURS + 1, GAUGES)


class Forecaster(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.width = width
        self.cell = nn.GRUCell(GAUGES, width)
        self.read = nn.Linear(width, GAUGES)

    def start(self, levels):
        return levels.new_zeros(len(levels), self.width)

    def forward(self, level, state):
        state = self.cell(level, state)
        return self.read(state), state


class Trainer:
    def __init__(self, model, rate):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        self.criterion = nn.SmoothL1Loss()

    def loss_of(self, levels):
        state = self.model.start(levels)
        for hour in range(HOURS):
            predicted, state = self.model(levels[:, hour], state)
            loss = self.criterion(predicted, levels[:, hour + 1])  # expect: LOOP26
        return loss

    def fit(self, loader, num_epochs):
        for epoch in range(num_epochs):
            total = 0.0
            self.model.train()
            for (levels,) in loader:
                self.optimizer.zero_grad()
                loss = self.loss_of(levels)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                total += loss.item() * len(levels)
            print(f"epoch {epoch} loss {total / len(loader.dataset):.4f}")


loader = DataLoader(TensorDataset(make_levels(320)), batch_size=32, shuffle=True)
trainer = Trainer(Forecaster(), rate=3e-3)
trainer.fit(loader, num_epochs=4)
