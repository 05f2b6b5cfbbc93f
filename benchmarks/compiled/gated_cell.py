"""A recurrent net with a hand-written gated cell, over short sequences."""

import torch
from torch import nn


class GatedCell(nn.Module):
    def __init__(self, num_inputs, width):
        super().__init__()
        self.gates = nn.Linear(num_inputs + width, 2 * width)
        self.candidate = nn.Linear(num_inputs + width, width)

    def forward(self, x, hidden):
        reset, update = torch.sigmoid(self.gates(torch.cat((x, hidden), dim=1))).chunk(2, dim=1)
        proposal = torch.tanh(self.candidate(torch.cat((x, reset * hidden), dim=1)))
        return update * hidden + (1 - update) * proposal


class Forecaster(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.width = width
        self.cell = GatedCell(3, width)
        self.head = nn.Linear(width, 1)

    def forward(self, series):
        hidden = series.new_zeros(series.shape[0], self.width)
        for moment in series.unbind(1):
            hidden = self.cell(moment, hidden)
        return self.head(hidden)


torch.manual_seed(3)
model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
series = torch.randn(24, 5, 3).cumsum(1)
target = series[:, -1, :1] * 1.1
for step in range(4):
    loss = (model(series[:, :4]) - target).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
