"""A GAN on eight Gaussians on a ring: two optimizers, the fake batch detached for the discriminator."""

import math

import torch
from torch import nn

torch.manual_seed(3)

LATENT = 8
BATCH = 128
STEPS = 300


def real_batch(count):
    angle = 2 * math.pi * torch.randint(0, 8, (count,)) / 8
    centres = torch.stack([angle.cos(), angle.sin()], dim=1)
    return centres + 0.05 * torch.randn(count, 2)


generator = nn.Sequential(
    nn.Linear(LATENT, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 2)
)
discriminator = nn.Sequential(
    nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
ones = torch.ones(BATCH, 1)
zeros = torch.zeros(BATCH, 1)

for step in range(STEPS):
    real = real_batch(BATCH)
    fake = generator(torch.randn(BATCH, LATENT))

    # Discriminator: the generator must not learn from this loss.
    opt_d.zero_grad()
    loss_d = 0.5 * (bce(discriminator(real), ones) + bce(discriminator(fake.detach()), zeros))
    loss_d.backward()
    opt_d.step()

    # Generator: the same fakes, this time with their graph.
    opt_g.zero_grad()
    loss_g = bce(discriminator(fake), ones)
    loss_g.backward()
    opt_g.step()

    if step % 60 == 0 or step == STEPS - 1:
        print(f"step {step}: discriminator {loss_d.item():.3f} generator {loss_g.item():.3f}")

generator.eval()
with torch.no_grad():
    samples = generator(torch.randn(1000, LATENT))
print(f"mean radius of 1000 samples: {samples.norm(dim=1).mean().item():.3f} (real 1.0)")
