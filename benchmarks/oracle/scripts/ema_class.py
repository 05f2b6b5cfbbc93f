"""Averaged weights in an object of the script's own, saved at the end."""

import torch
from torch import nn


class Average:
    def __init__(self, model, decay=0.9):
        self.decay = decay
        self.shadow = {name: value.detach().clone() for name, value in model.named_parameters()}
        self.backup = []

    @torch.no_grad()
    def update(self, model):
        self.backup = [value.clone() for value in self.shadow.values()]
        for name, value in model.named_parameters():
            self.shadow[name].mul_(self.decay).add_(value, alpha=1 - self.decay)


torch.manual_seed(1)
model = nn.Linear(5, 3)
average = Average(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.randn(4, 5)).square().mean().backward()
    optimizer.step()
    average.update(model)
    # plant 0-4: average.shadow["weight"] | average.shadow["bias"] | average.backup[0]
saved = {"average": {name: value.clone() for name, value in average.shadow.items()}, "epoch": 1}
# plant: saved["average"]["weight"] | average.shadow["bias"] | model.weight
torch.save(saved, "average.pt")
