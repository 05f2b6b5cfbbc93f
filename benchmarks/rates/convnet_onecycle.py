"""Digits with a deeper convolutional network, SGD with Nesterov momentum, and a one-cycle schedule."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--steps", type=int, default=150)
args = parser.parse_args()


def block(inputs, outputs, stride):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
y = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=32, shuffle=True, drop_last=True)
model = nn.Sequential(
    block(1, 16, 1), block(16, 32, 2), block(32, 32, 1), block(32, 64, 2), nn.Flatten(), nn.Linear(256, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, total_steps=args.steps)

step = 0
while step < args.steps:
    for images, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        schedule.step()
        step += 1
        if step == args.steps:
            break

model.eval()
with torch.no_grad():
    print(F.cross_entropy(model(x[1400:]), y[1400:]).item())
