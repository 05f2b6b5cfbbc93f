"""VQ autoencoder for small textures: residual stack, codebook with straight-through gradients."""

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, channels, hidden):
        super().__init__()
        self.block = nn.Sequential(
            nn.SiLU(),
            nn.Conv2d(channels, hidden, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(hidden, channels, 1),
        )

    def forward(self, x):
        return x + self.block(x)


class ResidualStack(nn.Module):
    def __init__(self, channels, hidden, num_layers):
        super().__init__()
        self.num_layers = num_layers
        self.layers = nn.ModuleList([Residual(channels, hidden) for _ in range(num_layers)])

    def forward(self, x):
        for i in range(self.num_layers):
            x = self.layers[i](x)
        return F.silu(x)


class Quantizer(nn.Module):
    def __init__(self, codes, width, commitment=0.25):
        super().__init__()
        self.codebook = nn.Embedding(codes, width)
        self.commitment = commitment

    def forward(self, z):
        flat = z.permute(0, 2, 3, 1)
        nearest = torch.cdist(flat.flatten(0, 2), self.codebook.weight).argmin(dim=1).detach()
        quantized = self.codebook(nearest).view_as(flat)
        loss = F.mse_loss(quantized, flat.detach()) + self.commitment * F.mse_loss(flat, quantized.detach())
        quantized = flat + (quantized - flat).detach()
        return quantized.permute(0, 3, 1, 2), loss


class VQAutoencoder(nn.Module):
    def __init__(self, channels=24, codes=64):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, channels, 4, 4), ResidualStack(channels, 16, 3))
        self.quantizer = Quantizer(codes, channels)
        self.decoder = nn.Sequential(ResidualStack(channels, 16, 3), nn.ConvTranspose2d(channels, 1, 4, 4))

    def forward(self, x):
        quantized, vq_loss = self.quantizer(self.encoder(x))
        return self.decoder(quantized), vq_loss


def textures(n, size=16):
    grid = torch.arange(size) / size
    f = 6 * torch.rand(n, 2, 1, 1)
    wave = f[:, 0] * grid[:, None] + f[:, 1] * grid[None, :]
    return torch.sin(6.28 * wave).unsqueeze(1) + 0.05 * torch.randn(n, 1, size, size)


torch.manual_seed(77)
train_images, test_images = textures(768), textures(128)
model = VQAutoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(5):
    model.train()
    error_sum = 0.0
    for rows in torch.randperm(len(train_images)).split(64):
        images = train_images[rows]
        optimizer.zero_grad()
        decoded, vq_loss = model(images)
        error = F.mse_loss(decoded, images)
        (error + vq_loss).backward()
        optimizer.step()
        error_sum += error.item() * len(rows)
    model.eval()
    with torch.no_grad():
        test_error = F.mse_loss(model(test_images)[0], test_images).item()
    print(f"epoch {epoch}: train {error_sum / len(train_images):.4f}  test {test_error:.4f}")
