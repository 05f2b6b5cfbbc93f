"""Train a small convolutional network on synthetic leaf textures."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_leaves(count, generator):
    """Striped 16x16 patches; the class is the orientation and the spacing of the veins."""
    labels = torch.randint(0, 4, (count,), generator=generator)
    ys, xs = torch.meshgrid(torch.linspace(0, 1, 16), torch.linspace(0, 1, 16), indexing="ij")
    phase = torch.rand(count, 1, 1, generator=generator) * 6.28
    horizontal = (labels % 2 == 0).view(-1, 1, 1)
    frequency = torch.where(labels < 2, 12.0, 24.0).view(-1, 1, 1)
    coordinate = torch.where(horizontal, xs, ys)
    images = torch.sin(frequency * coordinate + phase)
    images = images + 0.7 * torch.randn(images.shape, generator=generator)
    return images.unsqueeze(1), labels


class LeafNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.4), nn.Linear(128, classes))

    def forward(self, images):
        return self.head(self.features(images))


class Trainer:
    def __init__(self, net, train_loader, val_loader):
        self.net = net
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
        self.criterion = nn.CrossEntropyLoss()

    def train_epoch(self):
        self.net.train()
        total, seen = 0.0, 0
        for images, labels in self.train_loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.net(images), labels)
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(labels)
            seen += len(labels)
        return total / seen

    @torch.no_grad()
    def validate(self):
        correct, seen = 0, 0
        for images, labels in self.val_loader:  # expect: MODE01
            logits = self.net(images)
            correct += (logits.argmax(1) == labels).sum().item()
            seen += len(labels)
        return correct / seen

    def fit(self, epochs):
        for epoch in range(epochs):
            loss = self.train_epoch()
            accuracy = self.validate()
            print(f"epoch {epoch}: train loss {loss:.4f}, validation accuracy {accuracy:.3f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    train_set = TensorDataset(*make_leaves(512, generator))
    val_set = TensorDataset(*make_leaves(128, generator))
    trainer = Trainer(
        LeafNet(),
        DataLoader(train_set, batch_size=32, shuffle=True),
        DataLoader(val_set, batch_size=64),
    )
    trainer.fit(epochs=4)
