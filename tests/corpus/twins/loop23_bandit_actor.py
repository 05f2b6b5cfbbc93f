"""An actor and a critic for a continuous bandit."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(14)


class DDPG:
    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
        self.a_opt = torch.optim.Adam(self.actor.parameters(), 1e-3)
        self.c_opt = torch.optim.Adam(self.critic.parameters(), 1e-3)

    def q(self, s, a):
        return self.critic(torch.cat([s, a], 1))

    def update(self, s, a, r):
        self.a_opt.zero_grad()
        actor_loss = -self.q(s, self.actor(s)).mean()
        actor_loss.backward()
        self.a_opt.step()
        self.c_opt.zero_grad()
        critic_loss = F.mse_loss(self.q(s, a), r)
        critic_loss.backward()
        self.c_opt.step()


agent = DDPG()
for _ in range(40):
    s = torch.randn(64, 3)
    a = torch.rand(64, 1) * 2 - 1
    agent.update(s, a, 1 - (a - s[:, :1].tanh()).square())
