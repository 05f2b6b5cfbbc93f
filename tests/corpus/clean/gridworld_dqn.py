"""Double DQN on a small grid with a deep-copied target network and hard updates."""

import copy
import random
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn

SIZE = 4
ACTIONS = [(0, 1), (1, 0), (0, -1), (-1, 0)]


def encode(cell):
    return [2 * cell[0] / (SIZE - 1) - 1, 2 * cell[1] / (SIZE - 1) - 1]


class Grid:
    def reset(self):
        self.cell, self.time = (0, 0), 0
        return encode(self.cell)

    def step(self, action):
        dx, dy = ACTIONS[action]
        self.cell = (min(max(self.cell[0] + dx, 0), SIZE - 1), min(max(self.cell[1] + dy, 0), SIZE - 1))
        self.time += 1
        arrived = self.cell == (SIZE - 1, SIZE - 1)
        return encode(self.cell), (1.0 if arrived else -0.05), arrived, self.time >= 30


class Agent:
    def __init__(self, rng, gamma=0.95):
        self.rng = rng
        self.gamma = gamma
        self.online = nn.Sequential(
            nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)
        )
        self.target = copy.deepcopy(self.online).requires_grad_(False).eval()
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=2e-3)
        self.memory = deque(maxlen=3000)

    def act(self, state, epsilon):
        if self.rng.random() < epsilon:
            return self.rng.randrange(4)
        with torch.no_grad():
            return self.online(torch.tensor(state)).argmax().item()

    def learn(self, batch_size=64):
        states, actions, rewards, following, ends = zip(
            *self.rng.sample(self.memory, batch_size), strict=True
        )
        states, following = torch.tensor(states), torch.tensor(following)
        actions = torch.tensor(actions).unsqueeze(1)
        rewards = torch.tensor(rewards)
        going_on = 1.0 - torch.tensor(ends, dtype=torch.float32)
        with torch.no_grad():
            best = self.online(following).argmax(dim=1, keepdim=True)
            goal = rewards + self.gamma * going_on * self.target(following).gather(1, best).squeeze(1)
        value = self.online(states).gather(1, actions).squeeze(1)
        loss = F.smooth_l1_loss(value, goal)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 10.0)
        self.optimizer.step()
        return loss.item()

    def sync(self):
        self.target.load_state_dict(self.online.state_dict())


def run(episodes=50):
    torch.manual_seed(2)
    agent, env = Agent(random.Random(2)), Grid()
    steps, loss = 0, float("nan")
    for episode in range(episodes):
        state, finished, epsilon = env.reset(), False, max(0.1, 1 - episode / 25)
        while not finished:
            action = agent.act(state, epsilon)
            following, reward, arrived, timeout = env.step(action)
            agent.memory.append((state, action, reward, following, arrived))
            state, finished = following, arrived or timeout
            steps += 1
            if len(agent.memory) >= 200 and steps % 2 == 0:
                loss = agent.learn()
                if steps % 50 == 0:
                    agent.sync()
        if episode % 10 == 9:
            print(f"episode {episode}: {env.time} moves, loss {loss:.4f}")
    agent.online.eval()
    state, finished = env.reset(), False
    while not finished:
        state, _, arrived, timeout = env.step(agent.act(state, epsilon=0.0))
        finished = arrived or timeout
    print(f"greedy: {env.time} moves (best {2 * (SIZE - 1)})")


if __name__ == "__main__":
    run()
