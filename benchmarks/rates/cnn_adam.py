"""Digits with convolutions, batch norm, dropout and Adam, in epochs with a schedule."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--steps", type=int, default=150)
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 10))

    def forward(self, x):
        return self.head(self.features(x))


torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
y = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=32, shuffle=True, drop_last=True)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)

step = 0
while step < args.steps:
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        scheduler.step()
        step += 1
        if step == args.steps:
            break

model.eval()
with torch.no_grad():
    print(F.cross_entropy(model(x[1400:]), y[1400:]).item())
