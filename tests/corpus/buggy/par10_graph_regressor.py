"""Adapts a property regressor to a new assay: encoder frozen, new head trained."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self, features=16, width=48):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, width, bias=False),
            nn.BatchNorm1d(width),
            nn.SiLU(),
            nn.Linear(width, width, bias=False),
            nn.BatchNorm1d(width),
            nn.SiLU(),
        )

    def forward(self, x):
        return self.layers(x)

    def freeze(self):
        self.requires_grad_(False)
        self.eval()


class Regressor(nn.Module):
    def __init__(self, encoder, width=48):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.head(self.encoder(x)).squeeze(1)


def molecules(n, shift, generator):
    x = torch.randn(n, 16, generator=generator) + shift
    y = (
        torch.tanh(x[:, :4].sum(dim=1) / 2)
        + 0.5 * torch.sin(x[:, 4])
        + 0.05 * torch.randn(n, generator=generator)
    )
    return TensorDataset(x, y)


class Trainer:
    def __init__(self, model, lr, frozen_encoder=False):
        self.model = model
        self.frozen_encoder = frozen_encoder
        trainable = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(trainable, lr=lr)
        self.criterion = nn.HuberLoss()

    def fit(self, train_set, valid_set, epochs):
        loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True)
        for epoch in range(epochs):
            loss = self.train_epoch(loader)
            print(f"  epoch {epoch}: loss {loss:.4f}  valid {self.evaluate(valid_set):.4f}")

    def train_epoch(self, loader):
        self.model.train()  # expect: PAR10
        total = 0.0
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(loader)

    @torch.no_grad()
    def evaluate(self, dataset):
        self.model.eval()
        x, y = dataset.tensors
        return self.criterion(self.model(x), y).item()


def main():
    torch.manual_seed(16)
    generator = torch.Generator().manual_seed(16)
    encoder = Encoder()
    print("source assay")
    source = Trainer(Regressor(encoder), lr=3e-3)
    source.fit(molecules(640, 0.0, generator), molecules(160, 0.0, generator), epochs=3)
    reference = encoder.layers[1].running_mean.clone()

    encoder.freeze()
    print("new assay")
    adapted = Trainer(Regressor(encoder), lr=3e-3, frozen_encoder=True)
    adapted.fit(molecules(320, 0.4, generator), molecules(160, 0.4, generator), epochs=4)
    drift = (encoder.layers[1].running_mean - reference).abs().max().item()
    print(f"encoder statistics moved by {drift:.3f}")


if __name__ == "__main__":
    main()
