"""Predict how warm a day was from as many readings as there are, with a recurrent network."""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(15)


def day():
    level = torch.randn(())
    readings = level + torch.randn(int(torch.randint(3, 20, ())), 2)
    return readings, level


def collate(days):
    lengths = torch.tensor([len(readings) for readings, _ in days])
    padded = pad_sequence([readings for readings, _ in days], batch_first=True)
    is_real = torch.arange(padded.size(1)).unsqueeze(0) < lengths.unsqueeze(1)
    return padded, is_real, torch.stack([level for _, level in days])


class Thermometer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.states = nn.GRU(2, width, batch_first=True)
        self.out = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, readings, is_real):
        states, _ = self.states(readings)
        states = states.masked_fill(~is_real.unsqueeze(-1), 0.0)
        return self.out(states.mean(dim=1)).squeeze(1)  # expect: PROBE14


loader = DataLoader([day() for _ in range(320)], batch_size=32, shuffle=True, collate_fn=collate)
model = Thermometer()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(4):
    for readings, is_real, level in loader:
        loss = nn.functional.mse_loss(model(readings, is_real), level)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
