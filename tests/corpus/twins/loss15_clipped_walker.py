"""PPO in minibatches for an agent that walks towards a light."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(10)
CLIP, EPOCHS = 0.2, 3
policy = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 4))
critic = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], lr=3e-3)
moves = torch.tensor([[0.1, 0.0], [-0.1, 0.0], [0.0, 0.1], [0.0, -0.1]])


@torch.no_grad()
def walk(count=96):
    place = 2 * torch.rand(count, 2) - 1
    choice = Categorical(logits=policy(place))
    action = choice.sample()
    reward = place.norm(dim=1) - (place + moves[action]).norm(dim=1)
    advantage = reward - critic(place).squeeze(1)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    return place, action, choice.log_prob(action), reward, advantage


def objective(place, action, old, advantage):
    new = Categorical(logits=policy(place)).log_prob(action)
    ratio = torch.exp(new - old)
    clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
    return -torch.minimum(ratio * advantage, clipped * advantage).mean()


for iteration in range(6):
    place, action, old, reward, advantage = walk()
    for epoch in range(EPOCHS):
        for rows in torch.randperm(len(place)).split(32):
            loss = objective(place[rows], action[rows], old[rows], advantage[rows])
            loss = loss + 0.5 * (critic(place[rows]).squeeze(1) - reward[rows]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(iteration, reward.mean().item())
