"""Noise-prediction training (a one-dimensional diffusion model) on a spiral of points."""

import math

import torch
from torch import nn

torch.manual_seed(2024)

STEPS = 300
TIMES = 50
MAX_GRAD_NORM = 0.1

betas = torch.linspace(1e-3, 0.15, TIMES)
alpha_bar = torch.cumprod(1.0 - betas, dim=0)


def spiral(n):
    angle = 1.5 * math.pi * (1 + 2 * torch.rand(n))
    points = torch.stack([angle * angle.cos(), angle * angle.sin()], dim=1) / 8.0
    return points + 0.02 * torch.randn_like(points)


class TimeEmbedding(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("frequencies", torch.exp(torch.linspace(0, -4, width // 2)))

    def forward(self, t):
        phase = t[:, None].float() * self.frequencies
        return torch.cat([phase.sin(), phase.cos()], dim=1)


class Denoiser(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.time = TimeEmbedding(32)
        self.net = nn.Sequential(
            nn.Linear(2 + 32, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2)
        )

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], dim=1))


model = Denoiser()
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.SGD(trainable, lr=0.1, momentum=0.9)
valid = spiral(256)
valid_noise, valid_t = torch.randn_like(valid), torch.randint(TIMES, (256,))


def noised(x, noise, t):
    level = alpha_bar[t][:, None]
    return level.sqrt() * x + (1 - level).sqrt() * noise


smooth = 1.0
for step in range(1, STEPS + 1):
    model.train()
    x = spiral(128)
    t = torch.randint(TIMES, (len(x),))
    noise = torch.randn_like(x)
    loss = nn.functional.mse_loss(model(noised(x, noise, t), t), noise)

    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(trainable, MAX_GRAD_NORM)
    optimizer.step()

    smooth = 0.95 * smooth + 0.05 * loss.item()
    if step % 100 == 0:
        model.eval()
        with torch.no_grad():
            error = nn.functional.mse_loss(model(noised(valid, valid_noise, valid_t), valid_t), valid_noise)
        print(f"step {step}: loss {smooth:.4f}  valid {error.item():.4f}")
