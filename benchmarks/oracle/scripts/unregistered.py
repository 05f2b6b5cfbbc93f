"""Modules and tensors that no module registers, and attributes of parameters."""

import torch
from torch import nn


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 2)
        self.experts = [nn.Linear(4, 3), nn.Linear(4, 3)]
        self.usage = torch.zeros(2)
        self.cache = {}
        self.register_buffer("hidden", torch.zeros(3), persistent=False)

    def forward(self, x):
        weights = self.gate(x).softmax(1)
        self.usage = 0.9 * self.usage + weights.detach().mean(0)
        self.cache.setdefault("seen", []).append(weights.detach())
        return sum(weights[:, place, None] * expert(x) for place, expert in enumerate(self.experts))


class Wrapper:
    def __init__(self, model):
        self.model = model


def train(wrapper, optimizer):
    model = wrapper.model
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
        model.gate.weight.average.lerp_(model.gate.weight.detach(), 0.1)
        # plant 0-2: model.experts[0].weight | model.experts[1].bias | model.usage
        # plant 0-2: model.cache["seen"][0] | model.hidden | model.gate.weight.average | model.gate.weight | model.frozen[0].weight


torch.manual_seed(0)
wrapper = Wrapper(Mixture())
wrapper.model.gate.weight.average = torch.zeros(2, 4)
object.__setattr__(wrapper.model, "frozen", (nn.Linear(3, 3),))
train(wrapper, torch.optim.SGD(wrapper.model.gate.parameters(), lr=0.1))
