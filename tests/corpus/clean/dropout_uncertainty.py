"""Regression with Monte-Carlo dropout: at evaluation only the dropout layers are put back into train
mode, on purpose.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def set_seed(seed):
    torch.manual_seed(seed)


def make_data(count, low, high):
    x = low + (high - low) * torch.rand(count, 1)
    y = torch.sin(3 * x) + 0.1 * torch.randn(count, 1)
    return x, y


class DropoutNet(nn.Module):
    def __init__(self, width=64, rate=0.1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(1, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Dropout(rate),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Dropout(rate),
        )
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.body(x))


def enable_dropout(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()


@torch.no_grad()
def monte_carlo(model, x, draws=40):
    """Return mean and standard deviation over `draws` stochastic passes."""
    model.eval()
    enable_dropout(model)
    samples = torch.stack([model(x) for _ in range(draws)])
    model.eval()
    return samples.mean(dim=0), samples.std(dim=0)


def train(model, loader, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss_fn = nn.MSELoss()
    for epoch in range(epochs):
        model.train()
        running = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            running += loss.item() * x.size(0)
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1}: train mse {running / len(loader.dataset):.4f}")


if __name__ == "__main__":
    set_seed(21)
    x_train, y_train = make_data(600, -1.5, 1.5)
    x_test, y_test = make_data(200, -1.5, 1.5)
    x_far = torch.linspace(2.5, 3.5, 50).unsqueeze(1)

    net = DropoutNet()
    train(net, DataLoader(TensorDataset(x_train, y_train), batch_size=50, shuffle=True), epochs=15)

    mean, std = monte_carlo(net, x_test)
    _, std_far = monte_carlo(net, x_far)
    print(f"test mse of the mean {nn.functional.mse_loss(mean, y_test).item():.4f}")
    print(f"uncertainty inside {std.mean().item():.3f}, outside {std_far.mean().item():.3f}")
