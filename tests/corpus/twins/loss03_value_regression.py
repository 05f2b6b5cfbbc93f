"""Fitted Q evaluation of a fixed policy on logged transitions of a tiny walk."""

import copy

import torch
from torch import nn

STATES, ACTIONS, DISCOUNT = 6, 2, 0.9


class ValueNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(STATES + ACTIONS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.value = nn.Linear(width, 1)

    def forward(self, state, action):
        return self.value(self.body(torch.cat([state, action], dim=-1)))


def logged_transitions(count, generator):
    state = torch.randn(count, STATES, generator=generator)
    choice = torch.randint(0, ACTIONS, (count,), generator=generator)
    push = torch.where(choice == 1, 0.5, -0.5).unsqueeze(1)
    successor = 0.8 * state + push + 0.1 * torch.randn(count, STATES, generator=generator)
    reward = -successor[:, 0].abs() + 0.5 * successor[:, 1]
    return state, nn.functional.one_hot(choice, ACTIONS).float(), reward, successor


def policy(state):
    """Push towards the origin."""
    return nn.functional.one_hot((state[:, 0] < 0).long(), ACTIONS).float()


@torch.no_grad()
def bellman_target(network, reward, successor):
    future = network(successor, policy(successor)).squeeze(-1)
    return reward + DISCOUNT * future


def regression_step(network, frozen, optimizer, batch):
    state, action, reward, successor = batch
    target = bellman_target(frozen, reward, successor)
    predicted = network(state, action)
    loss = ((predicted.squeeze(-1) - target) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(0)
    data = logged_transitions(1024, torch.Generator().manual_seed(3))
    network = ValueNet()
    frozen = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    for iteration in range(6):
        losses = [
            regression_step(network, frozen, optimizer, [part[index] for part in data])
            for index in torch.randperm(1024).split(64)
        ]
        frozen.load_state_dict(network.state_dict())
        print(f"iteration {iteration}: Bellman error {sum(losses) / len(losses):.4f}")

    network.eval()
    state, action, reward, _ = logged_transitions(256, torch.Generator().manual_seed(4))
    with torch.no_grad():
        value = network(state, action).squeeze(-1)
    correlation = torch.corrcoef(torch.stack([value, reward]))[0, 1].item()
    print(f"correlation of value and reward {correlation:.3f}")


if __name__ == "__main__":
    main()
