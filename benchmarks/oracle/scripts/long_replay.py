"""A replay buffer of thousands of tensors, and a list that grows."""

import collections

import torch
from torch import nn

torch.manual_seed(0)
replay = collections.deque((torch.full((2,), float(number)) for number in range(4000)), maxlen=4000)
features = [torch.zeros(2) for _ in range(3500)]
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    batch = torch.stack([replay[int(place)] for place in torch.randint(0, 100, (4,))])
    optimizer.zero_grad()
    model(batch / 1000).square().mean().backward()
    optimizer.step()
    replay.append(batch[0].clone())
    features.append(batch[1].clone())
    # plant 0-3: replay[0] | replay[-1] | replay[2000] | replay[3000] | features[0] | features[-1] | features[1700]
