# lost: variable-not-saved agent.memory
import collections
import os
import random

import torch
from torch import nn

random.seed(2)
torch.manual_seed(2)
torch.set_num_threads(1)


class Agent:
    def __init__(self):
        self.q = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
        self.optim = torch.optim.Adam(self.q.parameters(), lr=2e-3)
        self.memory = collections.deque(maxlen=200)

    def learn(self):
        batch = random.sample(self.memory, 8)
        states = torch.stack([state for state, _, _ in batch])
        actions = torch.tensor([action for _, action, _ in batch])
        rewards = torch.tensor([reward for _, _, reward in batch])
        loss = (self.q(states).gather(1, actions[:, None])[:, 0] - rewards).pow(2).mean()
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()


agent = Agent()
begin = 0
if os.path.isfile("agent.pth"):
    kept = torch.load("agent.pth", weights_only=False)
    agent.q.load_state_dict(kept["q"])
    agent.optim.load_state_dict(kept["optim"])
    random.setstate(kept["random"])
    torch.random.set_rng_state(kept["torch"])
    begin = kept["tick"]
for tick in range(begin, 22):
    for _ in range(10):
        state = torch.rand(3)
        action = random.randrange(2)
        agent.memory.append((state, action, float(state[action])))
    agent.learn()
    if tick % 5 == 4:
        torch.save(
            {
                "q": agent.q.state_dict(),
                "optim": agent.optim.state_dict(),
                "random": random.getstate(),
                "torch": torch.random.get_rng_state(),
                "tick": tick + 1,
            },
            "agent.pth",
        )
