import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def weighted_error(prediction, target):
    """Errors above count twice."""
    error = prediction - target
    return (torch.where(error > 0, 2.0, 1.0) * error ** 2).mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(6, 48)
        self.output = nn.Linear(48, 1)

    def forward(self, x):
        return self.output(self.hidden(x).relu()).squeeze(-1)


def main():
    torch.manual_seed(0)
    x = torch.randn(640, 6)
    y = x[:, 0] - 2 * x[:, 1] + 0.1 * torch.randn(640)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(4):
        for xb, yb in loader:
            loss = weighted_error(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


main()
