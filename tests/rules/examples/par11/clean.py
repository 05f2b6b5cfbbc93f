import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, trainable):
        super().__init__()
        self.trainable = trainable
        self.first = nn.Linear(4, 8).requires_grad_(self.trainable)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.first(x)))

torch.manual_seed(0)
model = Net(trainable=False)
for parameter in model.out.parameters():
    parameter.requires_grad = True
optimizer = torch.optim.SGD(model.out.parameters(), lr=0.01)
for step in range(6):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
