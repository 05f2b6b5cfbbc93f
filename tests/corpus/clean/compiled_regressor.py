"""Regression with a compiled training step; evaluation uses the same weights through the plain module."""

import torch
from torch import nn

BATCH = 128


def friedman(count, generator):
    x = torch.rand(count, 5, generator=generator)
    y = 10 * torch.sin(3.14 * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, y


def main():
    torch.manual_seed(29)
    generator = torch.Generator().manual_seed(29)
    x, y = friedman(BATCH * 8 + 500, generator)
    x_train, y_train = x[: BATCH * 8], y[: BATCH * 8]
    x_test, y_test = x[BATCH * 8 :], y[BATCH * 8 :]
    mean, std = y_train.mean(), y_train.std()
    y_train = (y_train - mean) / std
    x_train, x_test = 4 * x_train - 2, 4 * x_test - 2

    model = nn.Sequential(nn.Linear(5, 48), nn.Tanh(), nn.Linear(48, 1))
    fast = torch.compile(model, backend="eager", dynamic=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss_fn = nn.MSELoss()

    for epoch in range(10):
        model.train()
        running = 0.0
        order = torch.randperm(len(x_train), generator=generator)
        for i in range(0, len(x_train), BATCH):
            rows = order[i : i + BATCH]
            loss = loss_fn(fast(x_train[rows]).squeeze(1), y_train[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item() * len(rows)
        if epoch % 3 == 0:
            print(f"epoch {epoch}: train loss {running / len(x_train):.4f}")

    model.eval()
    with torch.no_grad():
        prediction = model(x_test).squeeze(1) * std + mean
        rmse = loss_fn(prediction, y_test).sqrt().item()
    print(f"test rmse {rmse:.3f} (standard deviation of the target {y_test.std().item():.3f})")


if __name__ == "__main__":
    main()
