"""Test, then train: each batch of the stream is scored before the model learns from it."""
import torch
from torch import nn


def stream(steps, size, generator):
    drift = 0.0
    for _ in range(steps):
        x = torch.randn(size, 8, generator=generator)
        drift += 0.02
        yield x, (x[:, 0] + drift * x[:, 1] > 0).long()


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(4)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    right = seen = 0
    device = torch.device("cpu")
    for x_test, y_test in stream(40, 32, generator):
        model.eval()
        with torch.no_grad():
            right += (model(x_test.to(device)).argmax(1) == y_test).sum().item()
            seen += len(y_test)
        model.train()
        x, y = x_test, y_test
        for _ in range(2):
            loss = nn.functional.cross_entropy(model(x.to(device)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(right / seen)
    model.eval()
    with torch.no_grad():
        value = nn.functional.cross_entropy(model(x.to(device)), y).item()
    print("last batch", value)


main()
