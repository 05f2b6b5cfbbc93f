"""A Fourier layer with complex weights between two linear ones."""

import torch
from torch import nn


class Fourier(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, dtype=torch.cfloat) / width)

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        low = torch.einsum("bim,iom->bom", spectrum[..., : self.modes], self.weight)
        return torch.fft.irfft(low, n=x.shape[-1])


class Operator(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.lift = nn.Conv1d(1, width, 1)
        self.fourier = Fourier(width, 5)
        self.skip = nn.Conv1d(width, width, 1)
        self.project = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        x = self.lift(x)
        x = nn.functional.gelu(self.fourier(x) + self.skip(x))
        return self.project(x)


torch.manual_seed(8)
model = Operator()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(8, 1, 32).cumsum(-1) / 4
for step in range(4):
    loss = (model(x) - x.roll(3, -1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
