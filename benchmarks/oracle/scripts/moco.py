"""Contrastive learning with a queue of keys and an encoder that follows."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Linear(6, 4)
follower = copy.deepcopy(encoder)
queue = nn.functional.normalize(torch.randn(4, 32), dim=0)
pointer = torch.zeros(2, dtype=torch.long)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1, weight_decay=1e-4)
for step in range(4):
    x = torch.randn(8, 6)
    query = nn.functional.normalize(encoder(x), dim=1)
    with torch.no_grad():
        for mine, item in zip(follower.parameters(), encoder.parameters(), strict=True):
            mine.lerp_(item, 0.01)
        key = nn.functional.normalize(follower(x + 0.1), dim=1)
    scores = torch.cat([(query * key).sum(1, keepdim=True), query @ queue], dim=1)
    optimizer.zero_grad()
    nn.functional.cross_entropy(scores / 0.2, torch.zeros(8, dtype=torch.long)).backward()
    optimizer.step()
    place = int(pointer[0])
    queue[:, place : place + 8] = key.T
    pointer[0] = (place + 8) % 32
    # plant 0-3: queue | queue[:, -1] | follower.weight | follower.bias | encoder.weight | pointer[1:]
