"""bf16 autocast with a GradScaler that is there but disabled, as one script for several devices has it."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--precision", choices=["bf16", "fp16"], default="bf16")
    return parser.parse_args()


def crosses_and_rings(count, generator):
    """Images of 10 by 10 pixels with a cross, a ring or a bar somewhere."""
    label = torch.randint(0, 3, (count,), generator=generator)
    centre = 3 + 4 * torch.rand(count, 2, 1, 1, generator=generator)
    rows, columns = torch.arange(10.0).view(1, 10, 1), torch.arange(10.0).view(1, 1, 10)
    dy, dx = rows - centre[:, 0], columns - centre[:, 1]
    ring = ((dy**2 + dx**2).sqrt() - 2.2).abs() < 0.6
    cross = (dy.abs() < 0.7) | (dx.abs() < 0.7)
    bar = (dy.abs() < 0.7) & (dx.abs() < 9)
    shapes = torch.stack([cross, ring, bar], dim=1)[torch.arange(count), label].float()
    noise = 0.3 * torch.randn(count, 10, 10, generator=generator)
    return TensorDataset((2 * shapes - 1 + noise).unsqueeze(1), label)


def main():
    args = parse()
    torch.manual_seed(37)
    generator = torch.Generator().manual_seed(37)
    train_loader = DataLoader(crosses_and_rings(640, generator), batch_size=64, shuffle=True)
    val_loader = DataLoader(crosses_and_rings(256, generator), batch_size=128)

    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 3),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float16
    scaler = torch.amp.GradScaler("cpu", enabled=args.precision == "fp16")

    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for x, y in train_loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=dtype):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            scaler.step(optimizer)
            scaler.update()
            total += loss.item() * len(y)

        model.eval()
        hits = 0
        with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
            for x, y in val_loader:
                hits += (model(x).argmax(dim=1) == y).sum().item()
        print(f"epoch {epoch}: loss {total / 640:.3f} accuracy {hits / 256:.3f}")


if __name__ == "__main__":
    main()
