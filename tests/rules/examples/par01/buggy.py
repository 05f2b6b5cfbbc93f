import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = [nn.Linear(4, 4) for _ in range(2)]  # expect: PAR01
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        for layer in self.inner:
            x = torch.tanh(layer(x))
        return self.out(x)

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
