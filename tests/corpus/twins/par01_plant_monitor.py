"""Multi-task model of a plant: one trunk, one head per measured quantity, heads looked up by name."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Quantity:
    name: str
    kind: str
    outputs: int


QUANTITIES = [
    Quantity("temperature", "regression", 1),
    Quantity("flow", "regression", 1),
    Quantity("alarm", "classification", 3),
]


class PlantReadings(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 10, generator=g)
        load = torch.tanh(self.x[:, 0] + 0.5 * self.x[:, 1] * self.x[:, 2])
        self.y = {
            "temperature": (load + 0.2 * self.x[:, 3]).unsqueeze(1),
            "flow": torch.sin(2 * self.x[:, 4]).unsqueeze(1),
            "alarm": (load > -0.4).long() + (load > 0.4).long(),
        }

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], {name: values[i] for name, values in self.y.items()}


class PlantModel(nn.Module):
    def __init__(self, quantities, width=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.heads = nn.ModuleDict({q.name: nn.Linear(width, q.outputs) for q in quantities})

    def forward(self, x):
        shared = self.trunk(x)
        return {name: head(shared) for name, head in self.heads.items()}


class PlantLoss(nn.Module):
    def __init__(self, quantities):
        super().__init__()
        self.kinds = {q.name: q.kind for q in quantities}

    def forward(self, outputs, targets):
        parts = {}
        for name, kind in self.kinds.items():
            measure = nn.functional.cross_entropy if kind == "classification" else nn.functional.mse_loss
            parts[name] = measure(outputs[name], targets[name])
        return sum(parts.values()), {name: part.item() for name, part in parts.items()}


def train(model, criterion, loader, optimizer):
    model.train()
    for x, targets in loader:
        optimizer.zero_grad()
        loss, _ = criterion(model(x), targets)
        loss.backward()
        optimizer.step()


@torch.no_grad()
def report(model, criterion, dataset, epoch):
    model.eval()
    _, parts = criterion(model(dataset.x), dataset.y)
    print(f"epoch {epoch}: " + "  ".join(f"{name} {value:.3f}" for name, value in parts.items()))


def main():
    torch.manual_seed(21)
    loader = DataLoader(PlantReadings(640, seed=1), batch_size=64, shuffle=True)
    test_set = PlantReadings(160, seed=2)
    model, criterion = PlantModel(QUANTITIES), PlantLoss(QUANTITIES)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    for epoch in range(6):
        train(model, criterion, loader, optimizer)
        report(model, criterion, test_set, epoch)


if __name__ == "__main__":
    main()
