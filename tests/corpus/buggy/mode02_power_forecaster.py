"""Forecast the next hour of a household's power draw with a GRU."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def power_series(hours, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(hours)
    daily = np.sin(2 * np.pi * t / 24)
    weekly = 0.4 * np.sin(2 * np.pi * t / 168)
    return (daily + weekly + 0.1 * rng.standard_normal(hours)).astype(np.float32)


def windows(series, width):
    stacked = np.lib.stride_tricks.sliding_window_view(series, width + 1)
    stacked = torch.from_numpy(stacked.copy())
    return TensorDataset(stacked[:, :-1].unsqueeze(-1), stacked[:, -1])


class Forecaster(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, history):
        states, _ = self.rnn(history)
        return self.out(states[:, -1]).squeeze(-1)


def train_one_epoch(model, loader, optimizer):
    model.train()
    for history, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(history), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def evaluate(model, loader):
    model.eval()
    squared, count = 0.0, 0
    for history, target in loader:  # expect: MODE02
        forecast = model(history)
        squared += nn.functional.mse_loss(forecast, target, reduction="sum").item()
        count += len(target)
    return (squared / count) ** 0.5


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    series = power_series(1400, args.seed)
    train_loader = DataLoader(windows(series[:1000], args.width), batch_size=64, shuffle=True)
    test_loader = DataLoader(windows(series[1000:], args.width), batch_size=128)

    model = Forecaster(args.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(args.epochs):
        train_one_epoch(model, train_loader, optimizer)
        print(f"epoch {epoch}: test RMSE {evaluate(model, test_loader):.4f}")


if __name__ == "__main__":
    main()
