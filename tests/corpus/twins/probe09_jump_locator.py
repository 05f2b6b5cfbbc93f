"""Find where a signal jumps: a transformer over the values of each signal, made on the fly."""

import math

import torch
from torch import nn

torch.manual_seed(3)
LENGTH, WIDTH = 10, 16


class Codes(nn.Module):
    def __init__(self, width, longest=256):
        super().__init__()
        place = torch.arange(longest).unsqueeze(1)
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        codes = torch.zeros(1, longest, width)
        codes[0, :, 0::2] = torch.sin(place * rate)
        codes[0, :, 1::2] = torch.cos(place * rate)
        self.register_buffer("codes", codes)

    def forward(self, x):
        return x + self.codes[:, : x.size(1)]


class Locator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.codes = nn.Linear(1, WIDTH), Codes(WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, LENGTH)

    def forward(self, signals):
        return self.out(self.encoder(self.codes(self.embed(signals.unsqueeze(-1)))).mean(1))


model = Locator()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(60):
    signals, where = 0.3 * torch.randn(32, LENGTH), torch.randint(0, LENGTH, (32,))
    signals[torch.arange(32), where] += 3
    loss = nn.functional.cross_entropy(model(signals), where)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
