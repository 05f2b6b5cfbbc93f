"""Monthly rent from flat descriptions: a standardised table and a two-layer network."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Flats(Dataset):
    COLUMNS = ("area", "rooms", "floor", "age", "distance", "balcony")

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        table = rng.standard_normal((count, len(self.COLUMNS))).astype(np.float32)
        rent = 1.2 * table[:, 0] + 0.5 * table[:, 1] - 0.8 * table[:, 4]
        rent += 0.4 * table[:, 0] * table[:, 5] + 0.1 * rng.standard_normal(count)
        self.table = torch.from_numpy(table)
        self.rent = torch.from_numpy(rent.astype(np.float32))

    def __len__(self):
        return len(self.table)

    def __getitem__(self, index):
        return self.table[index], self.rent[index]


class RentModel(nn.Module):
    def __init__(self, features, width=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, table):
        return self.layers(table).squeeze(-1)


def fit(model, loader, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    criterion = nn.MSELoss()
    for epoch in range(epochs):
        model.train()
        losses = []
        for table, rent in loader:
            optimizer.zero_grad()
            loss = criterion(model(table), rent)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
        print(f"epoch {epoch}: mean squared error {np.mean(losses):.4f}")


@torch.no_grad()
def r_squared(model, data):
    model.eval()
    predicted = model(data.table).reshape(-1)
    residual = (data.rent - predicted).pow(2).sum()
    return 1 - (residual / (data.rent - data.rent.mean()).pow(2).sum()).item()


if __name__ == "__main__":
    torch.manual_seed(5)
    train, test = Flats(640, seed=5), Flats(160, seed=6)
    model = RentModel(len(Flats.COLUMNS))
    fit(model, DataLoader(train, batch_size=32, shuffle=True), epochs=6)
    print(f"R2 on unseen flats: {r_squared(model, test):.3f}")
