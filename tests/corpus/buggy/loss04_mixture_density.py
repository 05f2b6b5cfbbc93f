"""Mixture density network for an inverse problem with several answers."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)

COMPONENTS = 5
BATCH = 128
STEPS = 200


def inverse_sine(count, generator):
    t = torch.rand(count, 1, generator=generator) * 2 - 1
    x = t + 0.3 * torch.sin(2 * math.pi * t) + 0.05 * torch.randn(count, 1, generator=generator)
    return x, t


class MixtureDensity(nn.Module):
    def __init__(self, width=48, components=COMPONENTS):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.pi = nn.Linear(width, components)
        self.mu = nn.Linear(width, components)
        self.log_sigma = nn.Linear(width, components)

    def forward(self, x):
        h = self.body(x)
        pi = F.softmax(self.pi(h), dim=0)  # expect: LOSS04
        return pi, self.mu(h), self.log_sigma(h).clamp(-4, 2)


def negative_log_likelihood(pi, mu, log_sigma, target):
    z = (target - mu) / log_sigma.exp()
    log_normal = -0.5 * z**2 - log_sigma - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(torch.log(pi + 1e-8) + log_normal, dim=-1).mean()


generator = torch.Generator().manual_seed(1)
x_train, t_train = inverse_sine(1024, generator)
x_test, t_test = inverse_sine(256, generator)

model = MixtureDensity()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

step = 0
while True:
    for index in torch.randperm(len(x_train)).split(BATCH):
        optimizer.zero_grad()
        loss = negative_log_likelihood(*model(x_train[index]), t_train[index])
        loss.backward()
        optimizer.step()
        step += 1
        if step % 40 == 0:
            print(f"step {step}: negative log likelihood {loss.item():.4f}")
    if step >= STEPS:
        break

model.eval()
with torch.no_grad():
    test_nll = negative_log_likelihood(*model(x_test), t_test).item()
    alone = negative_log_likelihood(*model(x_test[:1]), t_test[:1]).item()
print(f"test negative log likelihood {test_nll:.4f}, of the first sample {alone:.4f}")
