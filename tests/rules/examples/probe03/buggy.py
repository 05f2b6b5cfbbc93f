import torch
from torch import nn

torch.manual_seed(0)
actor = nn.Linear(4, 2)
critic = nn.Linear(6, 1)
actor_optimizer = torch.optim.Adam(actor.parameters())
critic_optimizer = torch.optim.Adam(critic.parameters())
for step in range(5):
    state = torch.randn(16, 4)
    reward = state.sum(1, keepdim=True)
    critic_loss = (critic(torch.cat([state, torch.rand(16, 2)], 1)) - reward).square().mean()
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    action = actor(state)
    actor_loss = -critic(torch.cat([state, action.detach()], 1)).mean()  # expect: PROBE03
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
