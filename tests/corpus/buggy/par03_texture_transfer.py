"""Transfer learning: a network trained on three textures gets a new head for five materials."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TextureNet(nn.Module):
    def __init__(self, num_classes=3):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.fc = nn.Linear(96, num_classes)

    @classmethod
    def from_pretrained(cls, state):
        model = cls()
        model.load_state_dict(state)
        return model

    def forward(self, x):
        return self.fc(self.features(x))


def textures(n, kinds, seed, size=16):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(kinds, (n,), generator=g)
    grid = torch.arange(size).float()
    angle = labels.float()[:, None, None] * 3.14 / kinds
    wave = torch.cos(angle) * grid[:, None] + torch.sin(angle) * grid[None, :]
    shift = 6.28 * torch.rand(n, 1, 1, generator=g)
    images = torch.sin(wave + shift) + 0.4 * torch.randn(n, size, size, generator=g)
    return TensorDataset(images.unsqueeze(1), labels)


def fit(model, optimizer, train_set, epochs):
    loader = DataLoader(train_set, batch_size=32, shuffle=True)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
        print(f"  epoch {epoch}: loss {total / len(train_set):.3f}")


@torch.no_grad()
def accuracy(model, test_set):
    model.eval()
    hits = 0
    for images, labels in DataLoader(test_set, batch_size=128):
        hits += (model(images).argmax(1) == labels).sum().item()
    return hits / len(test_set)


def pretrain():
    model = TextureNet()
    fit(model, torch.optim.Adam(model.parameters(), lr=3e-3), textures(320, 3, seed=1), epochs=3)
    return model.state_dict()


def main():
    torch.manual_seed(6)
    print("pre-training")
    model = TextureNet.from_pretrained(pretrain())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)  # expect: PAR03
    model.fc = nn.Linear(model.fc.in_features, 5)  # expect: PAR03
    print("fine-tuning")
    fit(model, optimizer, textures(480, 5, seed=2), epochs=4)
    print(f"test accuracy {accuracy(model, textures(160, 5, seed=3)):.3f}")


if __name__ == "__main__":
    main()
