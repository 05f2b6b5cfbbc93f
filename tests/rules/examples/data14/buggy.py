import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def shuffle(values):
    return values[torch.randperm(len(values))]


for step in range(4):
    x = torch.randn(32, 8)
    y = x[:, :3].argmax(1)
    share = torch.distributions.Beta(1.0, 1.0).sample().item()
    scores = model(share * x + (1 - share) * shuffle(x))
    mixed = F.cross_entropy(scores, shuffle(y))  # expect: DATA14
    loss = share * F.cross_entropy(scores, y) + (1 - share) * mixed
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
