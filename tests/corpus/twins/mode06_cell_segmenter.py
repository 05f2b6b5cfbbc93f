"""Segment round cells in noisy micrographs; large images, so gradients are accumulated."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 32
ACCUMULATE = 8


class Micrographs(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        grid = torch.arange(SIZE).float()
        centres = 6 + 20 * torch.rand(count, 2, generator=generator)
        radii = 3 + 5 * torch.rand(count, 1, 1, generator=generator)
        dy = grid.view(1, -1, 1) - centres[:, 0].view(-1, 1, 1)
        dx = grid.view(1, 1, -1) - centres[:, 1].view(-1, 1, 1)
        self.masks = ((dy**2 + dx**2).sqrt() < radii).float().unsqueeze(1)
        stain = 0.8 + torch.rand(count, 1, 1, 1, generator=generator)
        light = 0.8 * torch.randn(count, 1, 1, 1, generator=generator)
        noise = 0.4 * torch.randn(self.masks.shape, generator=generator)
        self.images = stain * self.masks + light + noise

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.masks[index]


def block(inputs, outputs):
    norm = nn.GroupNorm(4, outputs)
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), norm, nn.ReLU())


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(block(1, 16), nn.MaxPool2d(2), block(16, 32))
        self.up = nn.Sequential(nn.Upsample(scale_factor=2), block(32, 16), nn.Conv2d(16, 1, 1))

    def forward(self, images):
        return self.up(self.down(images))


@torch.no_grad()
def dice(model, loader):
    model.eval()
    overlap = area = 0.0
    for images, masks in loader:
        guess = (model(images) > 0).float()
        overlap += 2 * (guess * masks).sum().item()
        area += (guess.sum() + masks.sum()).item()
    return overlap / area


def train_epoch(model, loader, optimizer, criterion):
    model.train()
    optimizer.zero_grad()
    total = 0.0
    for number, (image, mask) in enumerate(loader, start=1):
        output = model(image)
        loss = criterion(output, mask)
        (loss / ACCUMULATE).backward()
        total += loss.item()
        if number % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
    return total / number


def main():
    torch.manual_seed(0)
    train_loader = DataLoader(Micrographs(80, seed=1), batch_size=1, shuffle=True)
    val_loader = DataLoader(Micrographs(32, seed=2), batch_size=16)
    model = Segmenter()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(3):
        loss = train_epoch(model, train_loader, optimizer, criterion)
        print(f"epoch {epoch}: loss {loss:.4f}, dice {dice(model, val_loader):.3f}")


if __name__ == "__main__":
    main()
