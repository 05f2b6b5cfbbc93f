"""Forecasts tomorrow's energy demand from two weeks of history; LSTM with a decaying learning rate."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Settings:
    window: int = 14
    hidden: int = 32
    batch: int = 64
    epochs: int = 9
    lr: float = 1e-2
    milestones: list = field(default_factory=lambda: [6, 8])
    seed: int = 7


def demand_series(days, known, rng):
    t = np.arange(days)
    weekly = 0.8 * np.sin(2 * np.pi * t / 7)
    yearly = np.cos(2 * np.pi * t / 365)
    series = weekly + yearly + 0.15 * rng.standard_normal(days)
    series = (series - series[:known].mean()) / series[:known].std()
    return torch.tensor(series, dtype=torch.float32)


def windows(series, width):
    stacked = series.unfold(0, width + 1, 1)
    return TensorDataset(stacked[:, :width].unsqueeze(-1).clone(), stacked[:, width].clone())


class Forecaster(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.readout = nn.Linear(hidden, 1)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.readout(out[:, -1]).squeeze(-1)


class Experiment:
    def __init__(self, settings):
        self.s = settings
        torch.manual_seed(settings.seed)
        series = demand_series(800, 600, np.random.default_rng(settings.seed))
        self.train_loader = DataLoader(windows(series[:600], settings.window), settings.batch, shuffle=True)
        self.test_loader = DataLoader(windows(series[600:], settings.window), 256)
        self.model = Forecaster(settings.hidden)
        self.loss_fn = nn.MSELoss()
        self.optimizer, self.scheduler = self.configure_optimizers()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.model.parameters(), lr=self.s.lr)
        scheduler = MultiStepLR(optimizer, self.s.milestones, gamma=0.2)  # expect: LOOP10
        return optimizer, scheduler

    def training_step(self, x, y):
        self.optimizer.zero_grad()
        loss = self.loss_fn(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def test_error(self):
        self.model.eval()
        squared, count = 0.0, 0
        for x, y in self.test_loader:
            squared += (self.model(x) - y).square().sum().item()
            count += len(y)
        return (squared / count) ** 0.5

    def fit(self):
        for epoch in range(self.s.epochs):
            self.model.train()
            weighted, count = 0.0, 0
            for x, y in self.train_loader:
                weighted += self.training_step(x, y) * len(y)
                count += len(y)
            lr = self.scheduler.get_last_lr()[0]
            print(f"epoch {epoch}: lr {lr:.0e}  mse {weighted / count:.4f}  rmse {self.test_error():.4f}")


if __name__ == "__main__":
    Experiment(Settings()).fit()
