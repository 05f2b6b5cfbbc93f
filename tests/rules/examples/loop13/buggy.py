import torch
from torch import nn

torch.manual_seed(0)
cell = nn.Linear(6, 4)
head = nn.Linear(4, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
state = torch.zeros(8, 4)
for step in range(10):
    state = torch.tanh(cell(torch.cat([torch.randn(8, 2), state], dim=1)))
    loss = head(state).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)  # expect: LOOP13
    optimizer.step()
