"""Deep Q-learning in a corridor: walk to the treasure at the far end, mind the wind."""

import copy
import random
from collections import deque

import torch
from torch import nn


class Corridor:
    def __init__(self, length=8, limit=40):
        self.length, self.limit = length, limit

    def reset(self):
        self.place, self.time = 0, 0
        return self.observe()

    def observe(self):
        return nn.functional.one_hot(torch.tensor(self.place), self.length).float()

    def step(self, action):
        move = 1 if action == 1 else -1
        if random.random() < 0.1:
            move = -move
        self.place = min(max(self.place + move, 0), self.length - 1)
        self.time += 1
        found = self.place == self.length - 1
        return self.observe(), 1.0 if found else -0.02, found, found or self.time >= self.limit


class QNet(nn.Module):
    def __init__(self, states, actions, hidden=48):
        super().__init__()
        self.fc1 = nn.Linear(states, hidden)
        self.fc2 = nn.Linear(hidden, actions)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x)))


class DQN:
    def __init__(self, model, actions, gamma=0.95, lr=5e-3, batch_size=32):
        self.actions, self.gamma, self.batch_size = actions, gamma, batch_size
        self.policy_net = model
        self.target_net = copy.deepcopy(model)
        self.optimizer = torch.optim.Adam(self.policy_net.parameters(), lr=lr)
        self.memory = deque(maxlen=2000)
        self.epsilon = 1.0

    @torch.no_grad()
    def sample_action(self, state):
        self.epsilon = max(0.05, self.epsilon * 0.995)
        if random.random() < self.epsilon:
            return random.randrange(self.actions)
        return self.policy_net(state).argmax().item()

    def update(self):
        if len(self.memory) < self.batch_size:
            return
        batch = random.sample(self.memory, self.batch_size)
        states, actions, rewards, following, done = zip(*batch, strict=True)
        states, following = torch.stack(states), torch.stack(following)
        rewards, done = torch.tensor(rewards), torch.tensor(done)
        chosen = self.policy_net(states).gather(1, torch.tensor(actions)[:, None]).squeeze(1)
        with torch.no_grad():
            ahead = self.target_net(following).max(dim=1).values
        loss = nn.functional.smooth_l1_loss(chosen, rewards + self.gamma * ahead * (~done))
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy_net.parameters(), 10.0)
        self.optimizer.step()


def train(env, agent, episodes=30, target_update=4):
    for episode in range(1, episodes + 1):
        state, over, total = env.reset(), False, 0.0
        while not over:
            action = agent.sample_action(state)
            following, reward, found, over = env.step(action)
            agent.memory.append((state, action, reward, following, found))
            state, total = following, total + reward
            agent.update()
        if episode % target_update == 0:
            agent.target_net.load_state_dict(agent.policy_net.state_dict())
        if episode % 5 == 0:
            print(f"episode {episode}: return {total:.2f}  epsilon {agent.epsilon:.2f}")


if __name__ == "__main__":
    random.seed(1)
    torch.manual_seed(1)
    corridor = Corridor()
    train(corridor, DQN(QNet(corridor.length, 2), actions=2))
