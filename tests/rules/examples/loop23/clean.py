import torch
from torch import nn

torch.manual_seed(0)
trunk, actor, critic = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)
of_actor = torch.optim.SGD(actor.parameters(), lr=0.1)
of_critic = torch.optim.SGD([*trunk.parameters(), *critic.parameters()], lr=0.1)
for step in range(6):  # the trunk learns from both losses, on purpose
    x = torch.randn(8, 4)
    of_actor.zero_grad()
    of_critic.zero_grad()
    nn.functional.cross_entropy(actor(trunk(x)), x[:, 0].gt(0).long()).backward()
    of_actor.step()
    (critic(trunk(x)) - x.sum(1, keepdim=True)).square().mean().backward()
    of_critic.step()
