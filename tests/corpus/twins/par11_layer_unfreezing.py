"""Gradual unfreezing: first the new head alone, later the top block of the backbone with a smaller rate."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Backbone(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(24, width), nn.GELU())
        self.top = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU())

    def forward(self, x):
        return self.top(self.bottom(x))


class Classifier(nn.Module):
    def __init__(self, backbone, classes, width=32):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def domain(n, classes, seed, turn):
    """Clusters; the target domain is a rotated copy of the source domain."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 24, generator=torch.Generator().manual_seed(5))
    rotation, _ = torch.linalg.qr(torch.randn(24, 24, generator=torch.Generator().manual_seed(turn)))
    labels = torch.randint(classes, (n,), generator=g)
    return TensorDataset((0.7 * centres[labels] + torch.randn(n, 24, generator=g)) @ rotation, labels)


def freeze(module):
    for p in module.parameters():
        p.requires_grad = False


def unfreeze(module):
    for p in module.parameters():
        p.requires_grad = True


def make_optimizer(model, lr, backbone_lr):
    groups = [{"params": model.head.parameters(), "lr": lr}]
    tuned = [p for p in model.backbone.parameters() if p.requires_grad]
    if tuned:
        groups.append({"params": tuned, "lr": backbone_lr})
    return torch.optim.Adam(groups)


def fit(model, optimizer, dataset, epochs):
    loader = DataLoader(dataset, batch_size=50, shuffle=True)
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model, dataset):
    model.eval()
    x, y = dataset.tensors
    return (model(x).argmax(dim=1) == y).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--backbone-lr", type=float, default=2e-3)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(111)
    source = Classifier(Backbone(), classes=6)
    fit(
        source, torch.optim.Adam(source.parameters(), lr=args.lr), domain(600, 6, seed=1, turn=1), args.epochs
    )
    print(f"source accuracy {accuracy(source, domain(300, 6, seed=2, turn=1)):.3f}")

    train_set, test_set = domain(600, 6, seed=3, turn=2), domain(300, 6, seed=4, turn=2)
    model = Classifier(source.backbone, classes=6)
    freeze(model.backbone)
    fit(model, make_optimizer(model, args.lr, args.backbone_lr), train_set, args.epochs)
    print(f"head only: accuracy {accuracy(model, test_set):.3f}")

    unfreeze(model.backbone.top)
    fit(model, make_optimizer(model, args.lr, args.backbone_lr), train_set, args.epochs)
    print(f"top block unfrozen: accuracy {accuracy(model, test_set):.3f}")


if __name__ == "__main__":
    main()
