import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer.step()
for step in range(6):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad.mul_(-0.1)
    optimizer.step()
second = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=2)


def closure():
    second.zero_grad()
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    return loss


for step in range(6):
    second.step(closure)
