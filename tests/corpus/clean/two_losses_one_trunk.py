"""Two optimizers take turns, and what both losses share learns from both, on purpose."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)
trunk, actor, critic = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)
of_actor = torch.optim.SGD(actor.parameters(), lr=0.1)
of_critic = torch.optim.SGD([*trunk.parameters(), *critic.parameters()], lr=0.1)
for step in range(12):
    x = torch.randn(8, 4)
    of_actor.zero_grad()
    of_critic.zero_grad()
    F.cross_entropy(actor(trunk(x).relu()), x[:, 0].gt(0).long()).backward()
    of_actor.step()
    F.mse_loss(critic(trunk(x).relu()), x.sum(1, keepdim=True)).backward()
    of_critic.step()
encoder, decoder, judge = nn.Linear(10, 4), nn.Linear(4, 10), nn.Linear(4, 1)
optimizers = [torch.optim.Adam(model.parameters(), 1e-3) for model in (encoder, decoder, judge)]
for step in range(12):
    x = torch.randn(16, 10)
    for optimizer in optimizers:
        optimizer.zero_grad()
    F.mse_loss(decoder(encoder(x)), x).backward()
    optimizers[0].step()
    optimizers[1].step()
    for optimizer in optimizers:
        optimizer.zero_grad()
    judged = F.softplus(-judge(torch.randn(16, 4))).mean() + F.softplus(judge(encoder(x).detach())).mean()
    judged.backward()
    optimizers[2].step()
    for optimizer in optimizers:
        optimizer.zero_grad()
    F.softplus(-judge(encoder(x))).mean().backward()
    optimizers[0].step()
