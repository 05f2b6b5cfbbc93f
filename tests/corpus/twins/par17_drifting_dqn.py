"""Deep Q-learning on a drifting state, with a second network for the goals."""

import copy
import random
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)
random.seed(1)


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, state):
        return self.layers(state)


class Agent:
    def __init__(self):
        self.online = QNet()
        self.target = copy.deepcopy(self.online)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-3)
        self.memory = deque(maxlen=2000)
        self.sync_every = 20
        self.num_updates = 0

    def sync(self):
        self.target.load_state_dict(self.online.state_dict())

    def learn(self, batch):
        s, a, r, s2, done = (torch.stack(items) for items in zip(*batch))
        q = self.online(s).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            goal = r + 0.97 * (1 - done) * self.target(s2).max(1).values
        loss = F.smooth_l1_loss(q, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.num_updates += 1
        if self.num_updates % self.sync_every == 0:
            self.sync()
        return loss.item()


def step_env(state, action):
    state = state * 0.9 + (0.3 if action else -0.3) + 0.05 * torch.randn(4)
    reward = 1.0 - state.abs().mean()
    return state, reward, torch.tensor(float(random.random() < 0.05))


agent = Agent()
state = torch.randn(4)
for t in range(130):
    action = random.randrange(2) if random.random() < 0.2 else int(agent.online(state[None]).argmax())
    nxt, reward, done = step_env(state, action)
    agent.memory.append((state, torch.tensor(action), reward, nxt, done))
    state = torch.randn(4) if done else nxt
    if len(agent.memory) >= 64:
        agent.learn(random.sample(agent.memory, 32))
