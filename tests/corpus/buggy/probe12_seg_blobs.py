"""Segment discs and bars on a cluttered background."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
SIZE = 24
NUM_CLASSES = 3


def synth(n, seed):
    g = torch.Generator().manual_seed(seed)
    ys, xs = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    img = 0.4 * torch.randn(n, 1, SIZE, SIZE, generator=g)
    mask = torch.zeros(n, SIZE, SIZE, dtype=torch.long)
    for i in range(n):
        cy, cx, by = torch.randint(5, SIZE - 5, (3,), generator=g).tolist()
        disc = (ys - cy) ** 2 + (xs - cx) ** 2 <= 16
        bar = (ys - by).abs() <= 1
        img[i, 0][bar] += 1.0
        mask[i][bar] = 2
        img[i, 0][disc] += 1.0
        mask[i][disc] = 1
    return TensorDataset(img, mask)


class TinyUNet(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, ch, 3, padding=1), nn.ReLU(), nn.Conv2d(ch, ch, 3, padding=1), nn.ReLU())
        self.mid = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(ch, 2 * ch, 3, padding=1), nn.ReLU(), nn.Conv2d(2 * ch, ch, 3, padding=1), nn.ReLU()
        )
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.out = nn.Conv2d(2 * ch, NUM_CLASSES, 3, padding=1)

    def forward(self, x):
        skip = self.down(x)
        deep = self.up(self.mid(skip))
        return self.out(torch.cat([skip, deep], dim=1))


def pixel_loss(logits, target):
    flat = logits.reshape(-1, NUM_CLASSES)  # expect: PROBE12
    return nn.functional.cross_entropy(flat, target.reshape(-1))


def mean_iou(model, loader):
    inter = torch.zeros(NUM_CLASSES)
    union = torch.zeros(NUM_CLASSES)
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            pred = model(x).argmax(1)
            for c in range(NUM_CLASSES):
                inter[c] += ((pred == c) & (y == c)).sum()
                union[c] += ((pred == c) | (y == c)).sum()
    return (inter / union.clamp(min=1)).mean().item()


def main():
    torch.manual_seed(0)
    train_loader = DataLoader(synth(320, 0), batch_size=16, shuffle=True)
    test_loader = DataLoader(synth(120, 1), batch_size=40)
    model = TinyUNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(3):
        model.train()
        total = 0.0
        for x, y in train_loader:
            loss = pixel_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / len(train_loader):.4f}")
    print(f"test mIoU {mean_iou(model, test_loader):.4f}")


main()
