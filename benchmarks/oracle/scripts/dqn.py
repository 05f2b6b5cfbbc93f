"""Learning from a replay buffer, with a target network that is copied now and then."""

import collections
import copy
import random

import torch
from torch import nn

Transition = collections.namedtuple("Transition", "state action reward after")


def act(state):
    return torch.tanh(state.sum()), torch.roll(state, 1) * 0.9


def main():
    torch.manual_seed(0)
    draws = random.Random(0)
    values = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    target = copy.deepcopy(values)
    optimizer = torch.optim.Adam(values.parameters(), lr=0.01)
    replay, state = collections.deque(maxlen=12), torch.ones(3)
    for number in range(10):
        reward, after = act(state)
        replay.append(Transition(state, torch.tensor([number % 2, 0]), reward.repeat(2), after))
        state = after + torch.randn(3)
    for step in range(5):
        reward, after = act(state)
        replay.append(Transition(state, torch.tensor([step % 2, 1]), reward.repeat(2), after))
        state = after + torch.randn(3)
        batch = draws.sample(list(replay), 4)
        taken = values(torch.stack([item.state for item in batch])).gather(
            1, torch.stack([item.action[:1] for item in batch])
        )
        with torch.no_grad():
            best = target(torch.stack([item.after for item in batch])).amax(1, keepdim=True)
        optimizer.zero_grad()
        (taken - torch.stack([item.reward[:1] for item in batch]) - 0.9 * best).square().mean().backward()
        optimizer.step()
        if step % 3 == 2:
            target.load_state_dict(values.state_dict())
        # plant 0-3: target[0].weight | target[2].bias | replay[3].state | replay[-1].after | replay[5].reward
        # plant 0-3: replay[7].action[1:] | state | values[0].bias


main()
