"""Logistic regression by LBFGS."""
import torch
from torch import nn

torch.manual_seed(3)
x = torch.randn(200, 5)
y = (x[:, 0] + 0.5 * x[:, 1] > 0).float().unsqueeze(1)


class Logistic(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(5, 1)

    def forward(self, x):
        return self.lin(x)


model = Logistic()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=8)
loss_fn = nn.BCEWithLogitsLoss()


def closure():
    optimizer.zero_grad()
    loss = loss_fn(model(x), y) + 1e-3 * model.lin.weight.square().sum()
    loss.backward()
    return loss


for epoch in range(5):
    loss = optimizer.step(closure)
    print(epoch, loss.item())
