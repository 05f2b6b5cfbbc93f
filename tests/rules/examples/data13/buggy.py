import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Linear(8, 4)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)


def augment(batch):
    return batch + 0.1 * torch.randn_like(batch)


for step in range(4):
    batch = torch.randn(16, 8)
    view = augment(batch)
    first, second = view, view  # expect: DATA13
    scores = encoder(first) @ encoder(second).T
    loss = nn.functional.cross_entropy(scores, torch.arange(16))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
