from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


@dataclass
class Config:
    rows: int = 600
    holdout: float = 0.2
    batch: int = 32
    epochs: int = 4
    lr: float = 1e-2
    seed: int = 9


def split(dataset, cfg, part):
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(cfg.seed))
    cut = int(len(dataset) * (1 - cfg.holdout))
    return Subset(dataset, order[:cut].tolist() if part == "train" else order[cut:].tolist())


class Regressor(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(inputs, 48), nn.Linear(48, 48)])
        self.norm = nn.LayerNorm(48)
        self.out = nn.Linear(48, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return self.out(self.norm(x)).squeeze(-1)


class Experiment:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        x = torch.randn(cfg.rows, 8)
        y = torch.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * torch.randn(cfg.rows)
        data = TensorDataset(x, y)
        self.cfg = cfg
        self.train = DataLoader(split(data, cfg, "train"), batch_size=cfg.batch, shuffle=True)
        self.valid = DataLoader(split(data, cfg, "valid"), batch_size=cfg.batch)
        self.model = Regressor(8)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.loss = nn.SmoothL1Loss()

    def run(self):
        for epoch in range(self.cfg.epochs):
            self.model.train()
            for x, y in self.train:
                self.optimizer.zero_grad()
                self.loss(self.model(x), y).backward()
                self.optimizer.step()
            print(epoch, f"{self.validate():.4f}")

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total = sum(self.loss(self.model(x), y).item() * len(y) for x, y in self.valid)
        return total / len(self.valid.dataset)


Experiment(Config()).run()
