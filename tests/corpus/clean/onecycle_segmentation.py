"""Segment discs in noisy images; OneCycleLR is stepped after every optimizer step, for exactly all the
steps.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass(frozen=True)
class Settings:
    epochs: int = 4
    batch: int = 32
    max_lr: float = 0.2
    size: int = 16


class Discs(Dataset):
    def __init__(self, count, size, seed):
        generator = torch.Generator().manual_seed(seed)
        axis = torch.arange(float(size))
        centre = 3 + (size - 6) * torch.rand(count, 2, 1, 1, generator=generator)
        radius = 2 + 2.5 * torch.rand(count, 1, 1, generator=generator)
        distance = (
            (axis.view(1, -1, 1) - centre[:, 0]) ** 2 + (axis.view(1, 1, -1) - centre[:, 1]) ** 2
        ).sqrt()
        self.masks = (distance < radius).float().unsqueeze(1)
        self.images = 2 * self.masks - 1 + 0.8 * torch.randn(self.masks.shape, generator=generator)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], self.masks[i]


class TinyUNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down = nn.Conv2d(1, width, 3, padding=1)
        self.bottom = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.up = nn.Conv2d(3 * width, width, 3, padding=1)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        skip = F.silu(self.down(x))
        deep = F.silu(self.bottom(F.max_pool2d(skip, 2)))
        deep = F.interpolate(deep, scale_factor=2, mode="nearest")
        return self.out(F.silu(self.up(torch.cat([skip, deep], dim=1))))


def dice(logits, masks):
    found = (logits > 0).float()
    overlap = 2 * (found * masks).sum(dim=(1, 2, 3))
    return overlap / (found.sum(dim=(1, 2, 3)) + masks.sum(dim=(1, 2, 3))).clamp(min=1)


def main(settings):
    torch.manual_seed(53)
    train_loader = DataLoader(Discs(480, settings.size, seed=1), settings.batch, shuffle=True)
    val_loader = DataLoader(Discs(128, settings.size, seed=2), settings.batch)
    model = TinyUNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.max_lr / 25, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=settings.max_lr, epochs=settings.epochs, steps_per_epoch=len(train_loader)
    )
    for epoch in range(settings.epochs):
        model.train()
        loss_sum = 0.0
        for images, masks in train_loader:
            loss = F.binary_cross_entropy_with_logits(model(images), masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            loss_sum += loss.item() * len(images)

        model.eval()
        scores = []
        with torch.no_grad():
            for images, masks in val_loader:
                scores.append(dice(model(images), masks))
        print(
            f"epoch {epoch}: loss {loss_sum / len(train_loader.dataset):.3f} "
            f"dice {torch.cat(scores).mean().item():.3f} lr {scheduler.get_last_lr()[0]:.5f}"
        )


if __name__ == "__main__":
    main(Settings())
