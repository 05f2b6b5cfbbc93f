"""Sparse autoencoder; the code's activity is watched by a hook and punished in the loss."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(14)


class ActivityMeter:
    """Keeps the mean absolute activation of the module that it is attached to."""

    def __init__(self, module):
        self.value = torch.zeros(())
        self.handle = module.register_forward_hook(self.record)

    def record(self, module, inputs, output):
        self.value = output.abs().mean()


def mixtures(n, parts=24, size=40):
    """Each sample is a sum of few parts out of a fixed dictionary."""
    dictionary = torch.randn(parts, size, generator=torch.Generator().manual_seed(1))
    use = (torch.rand(n, parts) < 0.12).float() * (0.5 + torch.rand(n, parts))
    return TensorDataset(use @ dictionary + 0.05 * torch.randn(n, size))


encoder = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 48), nn.Softplus(beta=4))
decoder = nn.Linear(48, 40)
meter = ActivityMeter(encoder)

train_loader = DataLoader(mixtures(1024), batch_size=64, shuffle=True)
test_loader = DataLoader(mixtures(256), batch_size=256)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
mse = nn.MSELoss()
SPARSITY = 0.3

for epoch in range(8):
    encoder.train()
    decoder.train()
    reconstruction, activity = 0.0, 0.0
    for (x,) in train_loader:
        code = encoder(x)
        error = mse(decoder(code), x)
        loss = error + SPARSITY * meter.value
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reconstruction += error.item() / len(train_loader)
        activity += meter.value.item() / len(train_loader)

    encoder.eval()
    decoder.eval()
    with torch.no_grad():
        for (x,) in test_loader:
            code = encoder(x)
            test_error = mse(decoder(code), x).item()
            active = (code > 0.25).float().mean().item()
    meter.value = torch.zeros(())
    print(
        f"epoch {epoch}: error {reconstruction:.3f}  activity {activity:.3f}  "
        f"test error {test_error:.3f}  active units {active:.2f}"
    )
meter.handle.remove()
