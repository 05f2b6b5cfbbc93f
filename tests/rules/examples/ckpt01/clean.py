import torch
from torch import nn

torch.manual_seed(0)
source = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
state = {name: value.clone() for name, value in source.state_dict().items() if name.startswith("0.")}
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
model.load_state_dict(state, strict=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(4):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
