"""Forecast long series by truncated backpropagation through time: the state lives on, its graph does not."""

import torch
from torch import nn

torch.manual_seed(4)

SERIES = 16
LENGTH = 481
CHUNK = 40
EPOCHS = 6


def make_series(count, length):
    t = torch.arange(length, dtype=torch.float32)
    phase = 6.28 * torch.rand(count, 1)
    slow = torch.sin(0.05 * t + phase)
    fast = 0.5 * torch.sin(0.31 * t + 2 * phase)
    return (slow + fast + 0.05 * torch.randn(count, length)).unsqueeze(-1)


class Forecaster(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x, state=None):
        out, state = self.lstm(x, state)
        return self.head(out), state


def detach(state):
    return tuple(s.detach() for s in state)


def run_epoch(model, series, criterion, optimizer):
    model.train()
    inputs, targets = series[:, :-1], series[:, 1:]
    state = None
    total, chunks = 0.0, 0
    for start in range(0, inputs.size(1), CHUNK):
        x = inputs[:, start : start + CHUNK]
        y = targets[:, start : start + CHUNK]
        prediction, state = model(x, state)
        loss = criterion(prediction, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        state = detach(state)
        total += loss.item()
        chunks += 1
    return total / chunks  # every chunk has the same length


def evaluate(model, series, criterion):
    model.eval()
    with torch.no_grad():
        prediction, _ = model(series[:, :-1])
        return criterion(prediction, series[:, 1:]).item()


train_series = make_series(SERIES, LENGTH)
test_series = make_series(4, LENGTH)
model = Forecaster()
criterion = nn.MSELoss()
optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)

for epoch in range(EPOCHS):
    train_loss = run_epoch(model, train_series, criterion, optimizer)
    print(f"epoch {epoch}: train {train_loss:.4f} test {evaluate(model, test_series, criterion):.4f}")
