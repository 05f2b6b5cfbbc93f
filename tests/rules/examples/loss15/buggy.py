import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy = nn.Linear(4, 3)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for rollout in range(3):
    state = torch.randn(32, 4)
    with torch.no_grad():
        choice = Categorical(logits=policy(state))
        action = choice.sample()
        stored = choice.log_prob(action)
    reward = (action == state[:, :3].argmax(1)).float()
    advantage = reward - reward.mean()
    for epoch in range(4):
        new = Categorical(logits=policy(state)).log_prob(action)
        ratio = (new - new.detach()).exp()  # expect: LOSS15
        loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
