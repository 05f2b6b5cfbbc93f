import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def weighted_error(prediction, target):
    """Errors above count twice."""
    total = prediction.new_zeros(())
    for i in range(len(prediction)):  # expect: PERF03
        error = prediction[i] - target[i]  # expect: PERF03
        total = total + (2.0 if error > 0 else 1.0) * error ** 2  # expect: PERF03
    return total / len(prediction)


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
