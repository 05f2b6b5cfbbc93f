"""WGAN-GP on two half-moons: four critic steps per generator step, gradient penalty by autograd.grad."""

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    latent: int = 4
    hidden: int = 64
    batch: int = 128
    generator_steps: int = 90
    critic_steps: int = 4
    penalty: float = 10.0
    lr: float = 3e-3
    seed: int = 11


def half_moons(count):
    angle = math.pi * torch.rand(count)
    upper = torch.rand(count) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    return torch.stack([x - 0.5, y - 0.25], dim=1) + 0.05 * torch.randn(count, 2)


def mlp(inputs, hidden, outputs, last_bias=True):
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.SiLU(),
        nn.Linear(hidden, hidden),
        nn.SiLU(),
        nn.Linear(hidden, outputs, bias=last_bias),
    )


def gradient_penalty(critic, real, fake):
    mix = torch.rand(len(real), 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    score = critic(between)
    (gradient,) = torch.autograd.grad(score.sum(), between, create_graph=True)
    return ((gradient.norm(dim=1) - 1) ** 2).mean()


class Experiment:
    def __init__(self, config):
        self.config = config
        self.generator = mlp(config.latent, config.hidden, 2)
        self.critic = mlp(2, config.hidden, 1, last_bias=False)  # only differences of scores count
        self.generator_opt = torch.optim.Adam(self.generator.parameters(), lr=config.lr, betas=(0.0, 0.9))
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=config.lr, betas=(0.0, 0.9))

    def noise(self):
        return torch.randn(self.config.batch, self.config.latent)

    def critic_step(self):
        real = half_moons(self.config.batch)
        with torch.no_grad():
            fake = self.generator(self.noise())
        distance = self.critic(real).mean() - self.critic(fake).mean()
        loss = -distance + self.config.penalty * gradient_penalty(self.critic, real, fake)
        self.critic_opt.zero_grad()
        loss.backward()
        self.critic_opt.step()
        return distance.item()

    def generator_step(self):
        self.critic.requires_grad_(False)
        loss = -self.critic(self.generator(self.noise())).mean()
        self.generator_opt.zero_grad()
        loss.backward()
        self.generator_opt.step()
        self.critic.requires_grad_(True)

    def run(self):
        for step in range(self.config.generator_steps):
            for _ in range(self.config.critic_steps):
                distance = self.critic_step()
            self.generator_step()
            if step % 20 == 0:
                print(f"step {step}: estimated distance {distance:.3f}")


def main():
    config = Config()
    torch.manual_seed(config.seed)
    experiment = Experiment(config)
    experiment.run()
    experiment.generator.eval()
    with torch.no_grad():
        spread = experiment.generator(experiment.noise()).std(dim=0)
    print("spread of the samples:", [round(v, 2) for v in spread.tolist()])


if __name__ == "__main__":
    main()
