"""A small U-Net for diffusion: GroupNorm, SiLU, average pooling, upsampling and a skip."""

import torch
import torch.nn.functional as F
from torch import nn


class Part(nn.Module):
    def __init__(self, num_in, num_out):
        super().__init__()
        self.norm = nn.GroupNorm(2, num_in)
        self.act = nn.SiLU()
        self.conv = nn.Conv2d(num_in, num_out, 3, padding=1)

    def forward(self, x):
        return self.conv(self.act(self.norm(x)))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Linear(1, 4)
        self.lift = nn.Conv2d(1, 4, 1)
        self.down = nn.AvgPool2d(2, padding=1, count_include_pad=False)
        self.middle, self.last = Part(4, 4), Part(8, 1)

    def forward(self, x, time):
        x = self.lift(x) + self.time(time)[:, :, None, None]
        low = self.middle(self.down(x))
        return self.last(torch.cat((x, F.interpolate(low, size=x.shape[-2:], mode="bilinear")), dim=1))


torch.manual_seed(18)
model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(4):
    clean, noise, time = torch.rand(6, 1, 9, 9), torch.randn(6, 1, 9, 9), torch.rand(6, 1)
    level = time[:, :, None, None]
    loss = F.mse_loss(model((1 - level) * clean + level * noise, time), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
