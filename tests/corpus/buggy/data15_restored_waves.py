"""A denoising autoencoder for waves."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(13)
time = torch.linspace(0, 6.28, 24)
waves = torch.stack([torch.sin(time * (1 + number / 60)) for number in range(240)])


class Restorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24))

    def corrupt(self, x):
        return (x + 0.3 * torch.randn_like(x)).clamp(-1.5, 1.5)

    def forward(self, x):
        return self.net(x)


model = Restorer()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(8):
    for (clean,) in DataLoader(TensorDataset(waves), batch_size=40, shuffle=True):
        noisy = model.corrupt(clean)  # expect: DATA15
        loss = F.mse_loss(model(clean), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
with torch.no_grad():
    print(f"error {F.mse_loss(model(model.corrupt(waves)), waves):.4f}")
