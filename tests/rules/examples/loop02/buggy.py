import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in range(24):
    x = torch.randn(8, 4)
    optimizer.zero_grad()  # expect: LOOP02
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / 4
    loss.backward()
    if batch % 4 == 3:
        optimizer.step()
