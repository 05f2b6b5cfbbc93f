"""Galaxy shapes; the loader is written for several processes and also runs with one."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def galaxies(count, seed):
    """Elliptical blobs of 12x12 pixels: round, elongated flat, elongated upright."""
    generator = torch.Generator().manual_seed(seed)
    shape = torch.randint(0, 3, (count,), generator=generator)
    grid = torch.linspace(-1, 1, 12)
    y, x = grid.view(1, -1, 1), grid.view(1, 1, -1)
    wide = torch.where(shape == 1, 0.8, 0.35).view(-1, 1, 1)
    tall = torch.where(shape == 2, 0.8, 0.35).view(-1, 1, 1)
    image = torch.exp(-((x / wide) ** 2) - (y / tall) ** 2)
    image = image + 0.4 * torch.randn(image.shape, generator=generator)
    return TensorDataset(image.unsqueeze(1), shape)


class ShapeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 36, 3),
        )

    def forward(self, image):
        return self.net(image)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    return parser.parse_args()


def main():
    args = parse()
    torch.manual_seed(0)
    train_set, test_set = galaxies(384, 1), galaxies(96, 2)
    sampler = DistributedSampler(  # expect: DATA03
        train_set, num_replicas=args.world_size, rank=args.rank, shuffle=True, seed=0
    )
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    test_loader = DataLoader(test_set, batch_size=96)

    model = ShapeNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        model.train()
        for image, shape in train_loader:  # expect: DATA03
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(image), shape)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            hits = sum((model(image).argmax(1) == shape).sum().item() for image, shape in test_loader)
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {hits / len(test_set):.3f}")


if __name__ == "__main__":
    main()
