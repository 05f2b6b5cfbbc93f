"""A small GAN for two-dimensional ring data; losses are kept for the summary at the end."""

import torch
from torch import nn

torch.manual_seed(151)

LATENT, BATCH, EPOCHS = 8, 64, 6


def ring(n):
    angle = 6.2832 * torch.rand(n)
    return torch.stack([angle.cos(), angle.sin()], dim=1) + 0.05 * torch.randn(n, 2)


def network(n_in, n_out, hidden=64):
    return nn.Sequential(
        nn.Linear(n_in, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, n_out),
    )


class Journal:
    """Values by name, one per step."""

    def __init__(self):
        self.values = {}

    def add(self, name, value):
        self.values.setdefault(name, []).append(value.item())

    def mean(self, name, last):
        return sum(self.values[name][-last:]) / last


generator, critic = network(LATENT, 2), network(2, 1)
g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
d_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
journal = Journal()
data = ring(2048)
ones, zeros = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)


def critic_step(real):
    with torch.no_grad():
        fake = generator(torch.randn(len(real), LATENT))
    loss = criterion(critic(real), ones) + criterion(critic(fake), zeros)
    d_optimizer.zero_grad()
    loss.backward()
    d_optimizer.step()
    journal.add("critic", loss)


def generator_step():
    loss = criterion(critic(generator(torch.randn(BATCH, LATENT))), ones)
    g_optimizer.zero_grad()
    loss.backward()
    g_optimizer.step()
    journal.add("generator", loss)


for epoch in range(EPOCHS):
    generator.train()
    critic.train()
    for rows in torch.randperm(len(data)).split(BATCH):
        critic_step(data[rows])
        generator_step()
    generator.eval()
    with torch.no_grad():
        radius = generator(torch.randn(512, LATENT)).norm(dim=1)
    steps = len(data) // BATCH
    print(
        f"epoch {epoch}: critic {journal.mean('critic', steps):.3f}  "
        f"generator {journal.mean('generator', steps):.3f}  radius {radius.mean().item():.3f}"
    )
