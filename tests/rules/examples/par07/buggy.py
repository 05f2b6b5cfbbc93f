import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1).to(torch.bfloat16)
with torch.no_grad():
    model.weight.fill_(1.0)
    model.bias.fill_(1.0)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
for step in range(6):
    x = torch.randn(8, 4, dtype=torch.bfloat16)
    loss = (model(x) - 3 * x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # expect: PAR07
