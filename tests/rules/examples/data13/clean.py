import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.2))
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
for step in range(4):
    batch = torch.randn(16, 8)
    scores = encoder(batch) @ encoder(batch).T  # other units are dropped each time
    loss = nn.functional.cross_entropy(scores, torch.arange(16)) + 0.01 * encoder(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
