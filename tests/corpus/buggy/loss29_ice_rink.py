"""An actor and a critic with a shared body learn to stop in the middle of an ice rink."""

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F

torch.manual_seed(29)
DISCOUNT, LENGTH = 0.95, 12


class Rink:
    """Several skaters at once: position and speed, three pushes to choose from."""

    def __init__(self, num_skaters: int):
        self.num_skaters = num_skaters

    def reset(self) -> torch.Tensor:
        self.position = torch.rand(self.num_skaters) * 2 - 1
        self.speed = torch.zeros(self.num_skaters)
        return self.observe()

    def observe(self) -> torch.Tensor:
        return torch.stack([self.position, self.speed], dim=1)

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.speed = 0.9 * self.speed + 0.1 * (action - 1)
        self.position = self.position + self.speed
        return self.observe(), -self.position.abs() - 0.1 * self.speed.abs()


class ActorCritic(nn.Module):
    def __init__(self, width: int = 32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, 3), nn.Linear(width, 1)

    def forward(self, seen: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        features = self.body(seen)
        return Categorical(logits=self.actor(features)), self.critic(features).squeeze(-1)


rink, model = Rink(16), ActorCritic()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for episode in range(25):
    seen = rink.reset()
    log_probs, values, rewards, entropies = [], [], [], []
    for _ in range(LENGTH):
        policy, value = model(seen)
        action = policy.sample()
        seen, reward = rink.step(action)
        log_probs.append(policy.log_prob(action))
        values.append(value)
        rewards.append(reward)
        entropies.append(policy.entropy())
    total, returns = torch.zeros(16), []
    for reward in reversed(rewards):
        total = reward + DISCOUNT * total
        returns.insert(0, total)
    returns, values = torch.stack(returns), torch.stack(values)
    advantages = returns - values
    actor_loss = -(torch.stack(log_probs) * advantages).mean()  # expect: LOSS29
    critic_loss = F.mse_loss(values, returns)
    loss = actor_loss + 0.5 * critic_loss - 0.01 * torch.stack(entropies).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if episode % 5 == 4:
        print(f"episode {episode + 1}: mean return {returns[0].mean():.3f}")
