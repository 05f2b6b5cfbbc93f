"""REINFORCE on a noisy corridor: several episodes per step, one backward over the sum of log-
probabilities.
"""

import random

import torch
from torch import nn
from torch.distributions import Categorical

GOAL = 5
LIMIT = 20


class Corridor:
    """Walk from 0 to either end; the right end pays 1, every move costs a little."""

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.position, self.moves = 0, 0
        return self.observe()

    def observe(self):
        return [self.position / GOAL, self.moves / LIMIT, self.rng.gauss(0, 0.1)]

    def step(self, action):
        self.position += 1 if action == 1 else -1
        self.moves += 1
        done = abs(self.position) == GOAL or self.moves == LIMIT
        reward = 1.0 if self.position == GOAL else -0.02
        return self.observe(), reward, done


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, observation):
        return Categorical(logits=self.net(observation))


def play(env, policy):
    observation, done = env.reset(), False
    log_probs, rewards = [], []
    while not done:
        dist = policy(torch.tensor(observation))
        action = dist.sample()
        log_probs.append(dist.log_prob(action))
        observation, reward, done = env.step(action.item())
        rewards.append(reward)
    return torch.stack(log_probs), rewards


def discounted(rewards, gamma=0.97):
    returns, running = [], 0.0
    for reward in reversed(rewards):
        running = reward + gamma * running
        returns.append(running)
    return torch.tensor(returns[::-1])


@torch.no_grad()
def success_rate(env, policy, episodes=30):
    policy.eval()
    wins = 0
    for _ in range(episodes):
        observation, done = env.reset(), False
        while not done:
            action = policy(torch.tensor(observation)).probs.argmax().item()
            observation, _, done = env.step(action)
        wins += env.position == GOAL
    policy.train()
    return wins / episodes


def main(updates=25, episodes=8):
    torch.manual_seed(0)
    env = Corridor(random.Random(0))
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for update in range(updates):
        played = [play(env, policy) for _ in range(episodes)]
        returns = [discounted(rewards) for _, rewards in played]
        everything = torch.cat(returns)
        mean, std = everything.mean(), everything.std() + 1e-6
        terms = [
            -(log_probs * (value - mean) / std).sum()
            for (log_probs, _), value in zip(played, returns, strict=True)
        ]
        loss = torch.stack(terms).sum() / episodes
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 6 == 0:
            paid = sum(sum(rewards) for _, rewards in played) / episodes
            print(f"update {update}: mean return {paid:.2f}")
    print(f"greedy success rate {success_rate(env, policy):.2f}")


if __name__ == "__main__":
    main()
