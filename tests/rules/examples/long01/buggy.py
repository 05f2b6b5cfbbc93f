import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(120):
    x = torch.randn(16, 4)
    y = x.sum(1, keepdim=True)
    if step == 90:
        y[3] = 1e4  # a damaged sample
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()  # expect: LONG01
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
