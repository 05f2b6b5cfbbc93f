"""Sharpness-aware minimisation (SAM): two backward passes for each update."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SAM:
    """Climb to the worst point nearby, take the gradient there, go back, and step."""

    def __init__(self, params, base, rho=0.05):
        self.params = list(params)
        self.base = base
        self.rho = rho
        self.offsets = []

    @torch.no_grad()
    def climb(self):
        norm = torch.stack([p.grad.norm() for p in self.params]).norm()
        scale = self.rho / (norm + 1e-12)
        self.offsets = [p.grad * scale for p in self.params]
        for p, offset in zip(self.params, self.offsets, strict=True):
            p.add_(offset)
        self.base.zero_grad()

    @torch.no_grad()
    def descend(self):
        for p, offset in zip(self.params, self.offsets, strict=True):
            p.sub_(offset)
        self.base.step()
        self.base.zero_grad()


def blobs(count, centres, seed):
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, len(centres), (count,), generator=generator)
    return centres[label] + torch.randn(count, centres.size(1), generator=generator), label


def main():
    torch.manual_seed(9)
    centres = 1.2 * torch.randn(5, 10)
    train_loader = DataLoader(TensorDataset(*blobs(640, centres, 1)), batch_size=64, shuffle=True)
    x_test, y_test = blobs(500, centres, 2)

    model = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 5))
    sam = SAM(model.parameters(), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    criterion = nn.CrossEntropyLoss()

    for epoch in range(6):
        model.train()
        total = 0.0
        for x, y in train_loader:
            loss = criterion(model(x), y)
            loss.backward()
            sam.climb()
            criterion(model(x), y).backward()
            sam.descend()
            total += loss.item() * len(y)

        model.eval()
        with torch.no_grad():
            hits = (model(x_test).argmax(dim=1) == y_test).float().mean().item()
        print(f"epoch {epoch}: loss {total / len(train_loader.dataset):.3f} test accuracy {hits:.3f}")


if __name__ == "__main__":
    main()
