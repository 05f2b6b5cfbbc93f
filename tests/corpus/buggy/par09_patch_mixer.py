"""MLP-Mixer on patches of small images. Recipe as published: weight decay 0.1, warm-up, cosine."""

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Recipe:
    lr: float = 3e-3
    weight_decay: float = 0.1
    warmup: int = 10
    steps: int = 120
    batch: int = 48
    seed: int = 90


class MixerBlock(nn.Module):
    def __init__(self, patches, width):
        super().__init__()
        self.token_norm = nn.LayerNorm(width)
        self.token_mix = nn.Sequential(nn.Linear(patches, 32), nn.GELU(), nn.Linear(32, patches))
        self.channel_norm = nn.LayerNorm(width)
        self.channel_mix = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x):
        x = x + self.token_mix(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mix(self.channel_norm(x))


class Mixer(nn.Module):
    def __init__(self, size=16, patch=4, width=32, depth=2, classes=4):
        super().__init__()
        self.stem = nn.Conv2d(1, width, patch, patch)
        self.blocks = nn.Sequential(*[MixerBlock((size // patch) ** 2, width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.stem(images).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(dim=1))


def build_optimizer(model, recipe):
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.Adam(groups, lr=recipe.lr, betas=(0.9, 0.95))  # expect: PAR09


def warmup_cosine(recipe):
    def factor(step):
        if step < recipe.warmup:
            return (step + 1) / recipe.warmup
        progress = (step - recipe.warmup) / (recipe.steps - recipe.warmup)
        return 0.5 * (1 + math.cos(math.pi * progress))

    return factor


def gratings(n, generator):
    labels = torch.randint(4, (n,), generator=generator)
    angle = labels.float()[:, None, None] * math.pi / 4
    grid = torch.arange(16).float()
    phase = 6.28 * torch.rand(n, 1, 1, generator=generator)
    wave = torch.sin(grid[:, None] * angle.cos() + grid[None, :] * angle.sin() + phase)
    return (wave + 0.5 * torch.randn(n, 16, 16, generator=generator)).unsqueeze(1), labels


def main(recipe):
    torch.manual_seed(recipe.seed)
    generator = torch.Generator().manual_seed(recipe.seed)
    test_images, test_labels = gratings(400, generator)
    model = Mixer()
    optimizer = build_optimizer(model, recipe)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine(recipe))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for step in range(1, recipe.steps + 1):
        model.train()
        images, labels = gratings(recipe.batch, generator)
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 30 == 0:
            model.eval()
            with torch.no_grad():
                hits = (model(test_images).argmax(dim=1) == test_labels).float().mean().item()
            size = sum(p.detach().square().sum().item() for p in model.parameters()) ** 0.5
            print(f"step {step}: loss {loss.item():.3f}  test {hits:.3f}  weight norm {size:.2f}")


if __name__ == "__main__":
    main(Recipe())
