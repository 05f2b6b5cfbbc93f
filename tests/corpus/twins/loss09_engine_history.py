import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Engine:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.history = {"train": [], "valid": []}

    def train_epoch(self, loader):
        self.model.train()
        for x, y in loader:
            loss = nn.functional.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.inference_mode()
    def valid_epoch(self, loader):
        self.model.eval()
        losses = []
        sizes = []
        for x, y in loader:
            loss = nn.functional.mse_loss(self.model(x), y)
            losses.append(loss.item())
            sizes.append(len(x))
        mean = np.average(losses, weights=sizes)
        self.history["valid"].append(mean)
        return mean

    def fit(self, train, valid, epochs):
        for epoch in range(epochs):
            self.train_epoch(train)
            print("epoch", epoch, "rmse", float(np.sqrt(self.valid_epoch(valid))))


def main():
    torch.manual_seed(0)
    np.random.seed(0)
    x = torch.randn(500, 5)
    y = (x ** 2).sum(1, keepdim=True) / 5
    train = DataLoader(TensorDataset(x[:384], y[:384]), batch_size=32, shuffle=True)
    valid = DataLoader(TensorDataset(x[384:], y[384:]), batch_size=50)
    Engine(nn.Sequential(nn.Linear(5, 48), nn.SiLU(), nn.Linear(48, 1)), 1e-2).fit(train, valid, 3)


if __name__ == "__main__":
    main()
