"""Denoise image patches with a small convolutional network."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PATCH = 16


class NoisyPatches(Dataset):
    """Smooth random patches; the noise is drawn anew each time a patch is read."""

    def __init__(self, count, seed, sigma=0.5, fixed_noise=False):
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.randn(count, 1, 4, 4, generator=generator)
        self.clean = nn.functional.interpolate(coarse, size=PATCH, mode="bilinear", align_corners=False)
        self.noise = sigma * torch.randn(self.clean.shape, generator=generator) if fixed_noise else None
        self.sigma = sigma

    def __len__(self):
        return len(self.clean)

    def __getitem__(self, index):
        clean = self.clean[index]
        noise = self.sigma * torch.randn_like(clean) if self.noise is None else self.noise[index]
        return clean + noise, clean


class Denoiser(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 1, 3, padding=1),
        )

    def forward(self, noisy):
        return noisy - self.net(noisy)


def loaders():
    workers = 4 * (os.cpu_count() or 1)
    train = DataLoader(  # expect: PERF02
        NoisyPatches(256, seed=1), batch_size=16, shuffle=True, num_workers=workers, persistent_workers=True
    )
    val = DataLoader(NoisyPatches(64, seed=2, fixed_noise=True), batch_size=64)
    return train, val


def psnr(model, loader):
    model.eval()
    squared = count = 0.0
    with torch.no_grad():
        for noisy, clean in loader:
            squared += (model(noisy) - clean).pow(2).sum().item()
            count += clean.numel()
    return -10 * torch.tensor(squared / count).log10().item()


def main():
    torch.manual_seed(0)
    train_loader, val_loader = loaders()
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(3):
        model.train()
        for noisy, clean in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(noisy), clean)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}, PSNR {psnr(model, val_loader):.2f} dB")


if __name__ == "__main__":
    main()
