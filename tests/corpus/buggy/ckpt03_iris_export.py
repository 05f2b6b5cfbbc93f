"""Train a flower classifier, keep the best version on disk, reload it for the final test."""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class FlowerNet(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.hidden = nn.Linear(4, width)
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


def flowers(count, generator):
    """Sepal and petal sizes, standardised; three overlapping species."""
    centres = torch.tensor([[-1.0, 0.8, -1.3, -1.2], [0.1, -0.7, 0.3, 0.2], [0.9, -0.1, 1.0, 1.1]])
    species = torch.randint(0, 3, (count,), generator=generator)
    return TensorDataset(centres[species] + 0.5 * torch.randn(count, 4, generator=generator), species)


def accuracy(model, loader):
    model.eval()
    hits = seen = 0
    with torch.no_grad():
        for x, species in loader:
            hits += (model(x).argmax(dim=1) == species).sum().item()
            seen += len(x)
    return hits / seen


def train(model, train_loader, val_loader, path, epochs=6):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    best = -1.0
    for epoch in range(epochs):
        model.train()
        for x, species in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), species)
            loss.backward()
            optimizer.step()
        score = accuracy(model, val_loader)
        print(f"epoch {epoch}: loss {loss.item():.4f}, validation accuracy {score:.3f}")
        if score > best:
            best = score
            torch.save(model, path)  # expect: CKPT03


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    train_loader = DataLoader(flowers(320, generator), batch_size=32, shuffle=True)
    val_loader = DataLoader(flowers(80, generator), batch_size=80)
    test_loader = DataLoader(flowers(80, generator), batch_size=80)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "best.pt"
        train(FlowerNet(), train_loader, val_loader, path)
        best = torch.load(path, weights_only=False)
    print(f"test accuracy {accuracy(best, test_loader):.3f}")


if __name__ == "__main__":
    main()
