"""Heartbeat classes from one-dimensional signals."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED = 1234
BEAT, KINDS = 64, 3


def set_seed(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)


def beats(count):
    kind = np.random.randint(0, KINDS, count)
    t = np.linspace(-1, 1, BEAT)[None, :]
    centre = 0.2 * np.random.randn(count, 1)
    width = np.array([0.08, 0.16, 0.28])[kind][:, None]
    signal = np.exp(-(((t - centre) / width) ** 2)) + 0.35 * np.random.randn(count, BEAT)
    signal = (signal - signal.mean()) / signal.std()
    return TensorDataset(torch.tensor(signal, dtype=torch.float32).unsqueeze(1), torch.tensor(kind))


class BeatNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 16, 7, padding=3)
        self.conv2 = nn.Conv1d(16, 32, 5, padding=2)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(32 * 8, KINDS)

    def forward(self, signal):
        h = nn.functional.max_pool1d(torch.relu(self.conv1(signal)), 4)
        h = nn.functional.max_pool1d(torch.relu(self.conv2(h)), 2)
        return self.out(self.drop(h.flatten(1)))


def fit(model, loader, optimizer, epochs):
    model.train()
    for epoch in range(epochs):
        total, seen = 0.0, 0
        for signal, kind in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(signal), kind)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(kind)
            seen += len(kind)
        print(f"epoch {epoch}: loss {total / seen:.4f}")


def main():
    set_seed(SEED)
    train, test = beats(480), beats(120)
    model = BeatNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    fit(model, DataLoader(train, batch_size=32, shuffle=True), optimizer, epochs=3)
    model.eval()
    signal, kind = test.tensors
    with torch.no_grad():
        accuracy = (model(signal).argmax(dim=1) == kind).float().mean().item()
    print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
