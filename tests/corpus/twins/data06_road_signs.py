"""Small road-sign classifier with flips, shifts and noise as augmentation."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

SIDE, SIGNS = 14, 4


def draw_signs(count, generator):
    """Disc, square, cross and bar on a noisy background."""
    label = torch.randint(0, SIGNS, (count,), generator=generator)
    grid = torch.linspace(-1, 1, SIDE)
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    shapes = torch.stack(
        [
            (x**2 + y**2 < 0.4).float(),
            ((x.abs() < 0.5) & (y.abs() < 0.5)).float(),
            ((x - y).abs() < 0.3).float(),
            (x.abs() < 0.25).float(),
        ]
    )
    image = 2 * shapes[label] - 0.7 + 0.8 * torch.randn(count, SIDE, SIDE, generator=generator)
    return image.unsqueeze(1), label


def random_augment(image):
    shift = torch.randint(-2, 3, (2,)).tolist()
    image = torch.roll(image, shifts=shift, dims=(1, 2))
    return image + 0.3 * torch.randn_like(image)


class Signs(Dataset):
    def __init__(self, images, labels, transform=None):
        self.images = images
        self.labels = labels
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if self.transform is not None:
            image = self.transform(image)
        return image, self.labels[index]


def split(images, labels, fraction=0.2):
    order = torch.randperm(len(images)).tolist()
    cut = int(fraction * len(images))
    train = Subset(Signs(images, labels, random_augment), order[cut:])
    val = Subset(Signs(images, labels), order[:cut])
    return train, val


def main():
    torch.manual_seed(6)
    train, val = split(*draw_signs(480, torch.Generator().manual_seed(6)))
    train_loader = DataLoader(train, batch_size=32, shuffle=True)
    val_loader = DataLoader(val, batch_size=96)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 49, SIGNS),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        model.train()
        for image, label in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(image), label)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            hits = sum((model(i).argmax(1) == t).sum().item() for i, t in val_loader)
        print(f"epoch {epoch}: loss {loss.item():.4f}, validation accuracy {hits / len(val):.3f}")


if __name__ == "__main__":
    main()
