"""A memory of every sample's features, held by a closure."""

import torch
from torch import nn


def make_memory(num, size):
    memory = torch.zeros(num, size)
    counts = {"updates": torch.zeros(num, dtype=torch.int32)}

    def update(index, features):
        memory[index] = 0.5 * memory[index] + 0.5 * features
        counts["updates"][index] += 1

    update.bank = lambda: memory
    update.counts = lambda: counts["updates"]
    return update


torch.manual_seed(0)
data, model = torch.randn(20, 5), nn.Linear(5, 3)
remember = make_memory(20, 3)
optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
for step in range(4):
    index = torch.randperm(20)[:6]
    features = model(data[index])
    optimizer.zero_grad()
    features.square().mean().backward()
    optimizer.step()
    remember(index, features.detach())
    # plant 0-3: remember.bank() | remember.counts() | model.weight | data
