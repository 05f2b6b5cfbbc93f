"""Fine-tune a head on a frozen backbone; train() is overridden so that the backbone's BatchNorm stays
in eval mode.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def stripes(count, angles, seed):
    """Images of 12 by 12 pixels with stripes; the class is the orientation."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, len(angles), (count,), generator=generator)
    theta = torch.tensor(angles)[labels].view(-1, 1, 1)
    phase = 6.28 * torch.rand(count, 1, 1, generator=generator)
    grid = torch.linspace(-3, 3, 12)
    image = torch.sin(2 * (grid.view(1, 12, 1) * theta.cos() + grid.view(1, 1, 12) * theta.sin()) + phase)
    noise = 0.4 * torch.randn(count, 12, 12, generator=generator)
    return TensorDataset((image + noise).unsqueeze(1), labels)


def make_backbone():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class FineTuned(nn.Module):
    """A fixed feature extractor and a head that learns."""

    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone.requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, classes))

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        with torch.no_grad():
            features = self.backbone(x)
        return self.head(features)


def fit(model, loader, epochs, lr):
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trainable, lr=lr)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        print(f"  epoch {epoch}: loss {total / len(loader.dataset):.3f}")


@torch.inference_mode()
def accuracy(model, loader):
    model.eval()
    return sum((model(x).argmax(1) == y).sum().item() for x, y in loader) / len(loader.dataset)


def main():
    torch.manual_seed(5)
    print("pretraining on three orientations")
    backbone = make_backbone()
    source = DataLoader(stripes(640, [0.0, 0.8, 1.6], seed=1), batch_size=64, shuffle=True)
    fit(nn.Sequential(backbone, nn.Linear(32, 3)), source, epochs=3, lr=5e-3)

    print("fine-tuning on four others")
    angles = [0.3, 1.1, 1.9, 2.7]
    train = DataLoader(stripes(512, angles, seed=2), batch_size=64, shuffle=True)
    test = DataLoader(stripes(256, angles, seed=3), batch_size=128)
    model = FineTuned(backbone, classes=4)
    fit(model, train, epochs=5, lr=1e-2)
    print(f"test accuracy {accuracy(model, test):.3f}")


if __name__ == "__main__":
    main()
