"""A classifier that is validated after each epoch."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(7)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(8, 48), nn.Dropout(0.4), nn.Linear(48, 3)

    def forward(self, x):
        return self.b(self.drop(F.relu(self.a(x))))


def validate(model, x, y):
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


x = torch.randn(320, 8)
y = x[:, :3].argmax(1)
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(4):
    net.train()
    for idx in torch.randperm(256).split(32):
        loss = F.cross_entropy(net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, validate(net, x[256:], y[256:]))
