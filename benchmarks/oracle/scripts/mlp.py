"""A small network and Adam, all at the level of the module."""

import torch
from torch import nn

torch.manual_seed(0)
data, labels = torch.randn(16, 6), torch.randint(0, 3, (16,))
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
history, best = [torch.zeros(3)], {"weights": torch.zeros(8, 6)}
for step in range(4):
    loss = nn.functional.cross_entropy(model(data), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(model[2].bias.detach().clone())
    best["weights"].copy_(model[0].weight.detach())
    # plant 0-3: model[0].weight | model[2].bias | history[0] | history[-1] | best["weights"] | data
    # plant 0-3 large: optimizer.state[model[0].weight]["exp_avg"] | optimizer.state[model[2].weight]["exp_avg_sq"]
