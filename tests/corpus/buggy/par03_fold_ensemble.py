"""Cross-validated regression: the same small network is fitted once per fold, predictions are averaged."""

import copy

import numpy as np
import torch
from torch import nn


def friction_data(n, rng):
    x = rng.uniform(-1, 1, size=(n, 5)).astype(np.float32)
    y = np.sign(x[:, 0]) * np.sqrt(np.abs(x[:, 0])) + x[:, 1] * x[:, 2] + 0.05 * rng.standard_normal(n)
    return torch.from_numpy(x), torch.from_numpy(y.astype(np.float32))


class FrictionNet(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(-1)


class FoldTrainer:
    def __init__(self, model, lr=5e-3, epochs=12, batch_size=40):
        self.template = model
        self.lr, self.epochs, self.batch_size = lr, epochs, batch_size

    def reset(self, model):
        self.optimizer = torch.optim.Adam(model.parameters(), lr=self.lr)  # expect: PAR03
        self.model = copy.deepcopy(model)  # expect: PAR03

    def fit(self, x, y):
        self.reset(self.template)
        for _ in range(self.epochs):
            self.model.train()
            for rows in torch.randperm(len(x)).split(self.batch_size):
                self.optimizer.zero_grad()
                loss = nn.functional.mse_loss(self.model(x[rows]), y[rows])
                loss.backward()
                self.optimizer.step()
        return self.model

    @torch.no_grad()
    def rmse(self, x, y):
        self.model.eval()
        return nn.functional.mse_loss(self.model(x), y).sqrt().item()


def folds(n, k):
    parts = torch.randperm(n).chunk(k)
    for i, held_out in enumerate(parts):
        yield torch.cat([part for j, part in enumerate(parts) if j != i]), held_out


def main():
    torch.manual_seed(303)
    rng = np.random.default_rng(303)
    x, y = friction_data(600, rng)
    test_x, test_y = friction_data(200, rng)
    trainer = FoldTrainer(FrictionNet())
    members = []
    for i, (train, held_out) in enumerate(folds(len(x), 3)):
        members.append(trainer.fit(x[train], y[train]))
        seen, unseen = trainer.rmse(x[train], y[train]), trainer.rmse(x[held_out], y[held_out])
        print(f"fold {i}: train {seen:.3f}  held out {unseen:.3f}")
    with torch.no_grad():
        mean = torch.stack([member.eval()(test_x) for member in members]).mean(dim=0)
    print(f"ensemble test rmse {nn.functional.mse_loss(mean, test_y).sqrt().item():.3f}")


if __name__ == "__main__":
    main()
