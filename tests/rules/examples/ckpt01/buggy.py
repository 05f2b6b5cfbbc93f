import torch
from torch import nn

torch.manual_seed(0)
source = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
state = {f"module.{name}": value.clone() for name, value in source.state_dict().items()}
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
model.load_state_dict(state, strict=False)  # expect: CKPT01
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(4):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
