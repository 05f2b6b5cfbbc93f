import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.blocks = nn.Sequential(*[nn.Linear(4, 4)] * depth)  # expect: PAR02
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        return self.out(self.blocks(x))

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
