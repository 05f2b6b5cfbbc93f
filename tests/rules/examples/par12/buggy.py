import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
best, least = None, float("inf")
for epoch in range(6):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if loss.item() < least and epoch < 4:
        least = loss.item()
        best = {name: value for name, value in model.state_dict().items()}  # expect: PAR12
model.load_state_dict(best)
