import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

WINDOW, CHANNELS, CLASSES = 40, 6, 4


def make_recordings(n, seed):
    """Activity windows, time first: (n, WINDOW, CHANNELS). The lag between channels depends on the activity."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, n)
    t = np.arange(WINDOW)[None, :, None]
    freq = rng.uniform(0.08, 0.16, (n, 1, 1))
    phase = rng.uniform(0, 2 * np.pi, (n, 1, 1))
    lag = np.array([0.0, 0.5, 1.1, 1.8])[y][:, None, None] * np.arange(CHANNELS)[None, None, :]
    x = np.sin(2 * np.pi * freq * t + phase + lag) + rng.normal(0, 1.0, (n, WINDOW, CHANNELS))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(CHANNELS, 24, 5, padding=2)
        self.conv2 = nn.Conv1d(24, 32, 5, padding=2)
        self.bn1, self.bn2 = nn.BatchNorm1d(24), nn.BatchNorm1d(32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x):
        x = x.reshape(x.size(0), CHANNELS, WINDOW)  # expect: PROBE12
        x = F.max_pool1d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.relu(self.bn2(self.conv2(x)))
        return self.head(x.mean(-1))


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr)

    def train_epoch(self, loader):
        self.model.train()
        total = 0.0
        for x, y in loader:
            loss = F.cross_entropy(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.item()
        return total / len(loader)

    @torch.no_grad()
    def accuracy(self, loader):
        self.model.eval()
        hits = sum((self.model(x).argmax(1) == y).sum().item() for x, y in loader)
        return hits / len(loader.dataset)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(*make_recordings(2000, 0))
    train, test = random_split(data, [1500, 500])
    trainer = Trainer(ConvNet(), lr=3e-3)
    train_loader, test_loader = DataLoader(train, 50, shuffle=True), DataLoader(test, 250)
    for epoch in range(5):
        print(f"epoch {epoch + 1} loss {trainer.train_epoch(train_loader):.4f}")
    print(f"test accuracy {trainer.accuracy(test_loader):.4f}")
