"""Sunspot-like series: a small network with early stopping on the validation error."""

import copy

import torch
from torch import nn

torch.manual_seed(31)


class EarlyStopping:
    def __init__(self, patience, margin=0.0):
        self.patience, self.margin = patience, margin
        self.best_score = None
        self.weights = None
        self.counter = 0

    def __call__(self, val_loss, network):
        score = val_loss
        if self.best_score is None:
            self.best_score = score
            self.weights = copy.deepcopy(network.state_dict())
        elif score < self.best_score + self.margin:  # expect: LOOP20
            self.counter += 1
        else:
            self.best_score = score
            self.weights = copy.deepcopy(network.state_dict())
            self.counter = 0
        return self.counter >= self.patience


time = torch.linspace(0, 60, 900)
series = torch.sin(time) + 0.5 * torch.sin(2.3 * time) + 0.1 * torch.randn(900)
windows = series.unfold(0, 21, 1)
train, valid = windows[:600], windows[640:]
network = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
stopping = EarlyStopping(patience=6)
for epoch in range(12):
    network.train()
    for rows in train[torch.randperm(len(train))].split(100):
        loss = nn.functional.mse_loss(network(rows[:, :20]), rows[:, 20:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    network.eval()
    with torch.no_grad():
        error = nn.functional.mse_loss(network(valid[:, :20]), valid[:, 20:]).item()
    if stopping(error, network):
        break
network.load_state_dict(stopping.weights)
