import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in range(24):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / 4
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # expect: LOOP07
    if batch % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
