"""U-Net style segmentation of blobs with automatic mixed precision."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, random_split


class Blobs(Dataset):
    def __init__(self, n, size=32, seed=0):
        g = torch.Generator().manual_seed(seed)
        ys, xs = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        centre = torch.randint(6, size - 6, (n, 2, 1, 1), generator=g)
        radius = torch.randint(3, 7, (n, 1, 1), generator=g)
        inside = (ys - centre[:, 0]) ** 2 + (xs - centre[:, 1]) ** 2 <= radius**2
        self.masks = inside.float().unsqueeze(1)
        self.images = self.masks + 0.5 * torch.randn(n, 1, size, size, generator=g)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {"image": self.images[i], "mask": self.masks[i]}


def double_conv(n_in, n_out):
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(inplace=True),
        nn.Conv2d(n_out, n_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.inc = double_conv(1, width)
        self.down = double_conv(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge = double_conv(2 * width, width)
        self.outc = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        top = self.inc(x)
        low = self.down(F.max_pool2d(top, 2))
        return self.outc(self.merge(torch.cat([top, self.up(low)], dim=1)))


@torch.inference_mode()
def dice(net, loader, amp):
    net.eval()
    overlap, area = 0.0, 0.0
    for batch in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
            guess = (net(batch["image"]) > 0).float()
        overlap += 2 * (guess * batch["mask"]).sum().item()
        area += (guess.sum() + batch["mask"].sum()).item()
    net.train()
    return overlap / max(area, 1.0)


def train_net(args):
    torch.manual_seed(args.seed)
    dataset = Blobs(200, seed=args.seed)
    train_set, val_set = random_split(dataset, [160, 40], generator=torch.Generator().manual_seed(0))
    train_loader = DataLoader(train_set, batch_size=16, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=40)
    net = UNet()
    optimizer = optim.RMSprop(net.parameters(), lr=args.lr, momentum=0.5)
    grad_scaler = torch.amp.GradScaler("cpu", enabled=args.amp)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(1, args.epochs + 1):
        net.train()
        epoch_loss = 0.0
        for batch in train_loader:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.amp):
                logits = net(batch["image"])
                loss = criterion(logits.float(), batch["mask"])
            optimizer.zero_grad(set_to_none=True)
            grad_scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(net.parameters(), args.clip)  # expect: LOOP06
            grad_scaler.step(optimizer)
            grad_scaler.update()
            epoch_loss += loss.item()
        score = dice(net, val_loader, args.amp)
        print(f"epoch {epoch}: loss {epoch_loss / len(train_loader):.4f}, dice {score:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--no-amp", dest="amp", action="store_false")
    train_net(parser.parse_args())
