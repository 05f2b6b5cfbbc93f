import torch
from torch import nn

torch.manual_seed(0)
policy, target = nn.Linear(4, 2), nn.Linear(4, 2)
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
for step in range(6):
    x = torch.randn(8, 4)
    with torch.no_grad():
        goal = 1 + 0.9 * target(x).amax(1)
    loss = (policy(x)[:, 0] - goal).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 2:
        target.load_state_dict(target.state_dict())  # expect: PAR13
