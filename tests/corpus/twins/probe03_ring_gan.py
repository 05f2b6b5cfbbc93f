"""A GAN that learns a ring of eight Gaussians."""

import math

import torch
import torch.nn as nn

LATENT = 8
BATCH = 128


def ring(count):
    angle = torch.randint(0, 8, (count,)) * (math.pi / 4)
    centres = torch.stack([angle.cos(), angle.sin()], dim=1)
    return centres + 0.05 * torch.randn(count, 2)


def mlp(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs)
    )


class GAN:
    def __init__(self):
        self.generator = mlp(LATENT, 2)
        self.discriminator = mlp(2, 1)
        self.g_optimizer = torch.optim.Adam(self.generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
        self.d_optimizer = torch.optim.Adam(self.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
        self.criterion = nn.BCEWithLogitsLoss()
        self.real_label = torch.ones(BATCH, 1)
        self.fake_label = torch.zeros(BATCH, 1)

    def discriminator_step(self, real, fake):
        self.d_optimizer.zero_grad()
        loss = self.criterion(self.discriminator(real), self.real_label)
        loss = loss + self.criterion(self.discriminator(fake.detach()), self.fake_label)
        loss.backward()
        self.d_optimizer.step()
        return loss.item()

    def generator_step(self, fake):
        self.g_optimizer.zero_grad()
        verdict = self.discriminator(fake)
        loss = self.criterion(verdict, self.real_label)
        loss.backward()
        self.g_optimizer.step()
        return loss.item()

    def train(self, steps):
        for step in range(1, steps + 1):
            real = ring(BATCH)
            fake = self.generator(torch.randn(BATCH, LATENT))
            d_loss = self.discriminator_step(real, fake)
            g_loss = self.generator_step(fake)
            if step % 40 == 0:
                print(f"step {step}: D {d_loss:.3f} G {g_loss:.3f} mean radius {self.radius():.3f}")

    @torch.no_grad()
    def radius(self, count=512):
        return self.generator(torch.randn(count, LATENT)).norm(dim=1).mean().item()


if __name__ == "__main__":
    torch.manual_seed(1)
    gan = GAN()
    print(f"before training: mean radius {gan.radius():.3f}")
    gan.train(steps=200)
