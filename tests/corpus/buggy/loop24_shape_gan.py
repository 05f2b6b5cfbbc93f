"""A small GAN of points on a line, each network with its own optimizer and schedule."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import StepLR

torch.manual_seed(5)


def network(width_in, width_out):
    return nn.Sequential(nn.Linear(width_in, 32), nn.LeakyReLU(0.2), nn.Linear(32, width_out))


class Trainer:
    def __init__(self, lr=1e-3):
        self.generator, self.critic = network(4, 2), network(2, 1)
        self.opt_g = torch.optim.Adam(self.generator.parameters(), lr=lr, betas=(0.5, 0.9))
        self.opt_d = torch.optim.Adam(self.critic.parameters(), lr=lr, betas=(0.5, 0.9))
        self.schedules = [
            StepLR(self.opt_d, step_size=2, gamma=0.8),
            StepLR(self.opt_d, step_size=2, gamma=0.8),  # expect: LOOP24
        ]

    def step(self, real):
        fake = self.generator(torch.randn(len(real), 4))
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        loss_d = F.binary_cross_entropy_with_logits(self.critic(real), ones)
        loss_d = loss_d + F.binary_cross_entropy_with_logits(self.critic(fake.detach()), zeros)
        self.opt_d.zero_grad()
        loss_d.backward()
        self.opt_d.step()
        loss_g = F.binary_cross_entropy_with_logits(self.critic(fake), ones)
        self.opt_g.zero_grad()
        loss_g.backward()
        self.opt_g.step()
        return loss_d.item(), loss_g.item()


trainer = Trainer()
for epoch in range(5):
    for _ in range(10):
        place = torch.rand(64, 1)
        losses = trainer.step(torch.cat([place, 2 * place - 1], 1))
    for schedule in trainer.schedules:
        schedule.step()
    print(epoch, *losses)
