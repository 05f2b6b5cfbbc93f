import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(30, 64), nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        h = torch.tanh(self.second(h))
        return torch.sigmoid(50 * self.out(h))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(32, 30)
    loss = (model(x) - (x[:, :8] > 0).float()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
