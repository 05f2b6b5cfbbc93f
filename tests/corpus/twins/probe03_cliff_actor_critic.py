"""One-step actor-critic on a short corridor with a cliff at one end."""

import torch
from torch import nn
from torch.distributions import Categorical

CELLS, DISCOUNT, LIMIT = 7, 0.95, 30


class Corridor:
    """Start in the middle; the goal is on the right, the cliff on the left."""

    def reset(self):
        self.cell, self.time = CELLS // 2, 0
        return self.observe()

    def observe(self):
        return nn.functional.one_hot(torch.tensor(self.cell), CELLS).float()

    def step(self, action):
        self.time += 1
        self.cell += 1 if action == 1 else -1
        if self.cell == CELLS - 1:
            return self.observe(), 1.0, True
        if self.cell == 0:
            return self.observe(), -1.0, True
        return self.observe(), -0.02, self.time >= LIMIT


class Agent:
    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(CELLS, 32), nn.Tanh(), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(CELLS, 32), nn.Tanh(), nn.Linear(32, 1))
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=5e-3)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=1e-2)

    def act(self, observation):
        distribution = Categorical(logits=self.actor(observation))
        action = distribution.sample()
        return action.item(), distribution.log_prob(action)

    def value(self, observation):
        return self.critic(observation).squeeze(-1)

    def learn(self, observation, log_prob, reward, successor, done):
        target = reward + DISCOUNT * (1.0 - done) * self.value(successor).detach()
        error = target - self.value(observation)

        critic_loss = error.pow(2)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()

        actor_loss = -log_prob * error.detach()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()


def run_episode(environment, agent):
    observation, done, total = environment.reset(), False, 0.0
    while not done:
        action, log_prob = agent.act(observation)
        successor, reward, done = environment.step(action)
        agent.learn(observation, log_prob, reward, successor, float(done))
        observation = successor
        total += reward
    return total


if __name__ == "__main__":
    torch.manual_seed(2)
    environment, agent = Corridor(), Agent()
    returns = []
    for episode in range(1, 61):
        returns.append(run_episode(environment, agent))
        if episode % 15 == 0:
            print(f"episode {episode}: mean return {sum(returns[-15:]) / 15:.3f}")
    with torch.no_grad():
        print("values:", " ".join(f"{v:.2f}" for v in agent.value(torch.eye(CELLS)).tolist()))
