"""A regression (diabetes) with SGD and momentum: small, noisy, and far from zero at its best."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--steps", type=int, default=150)
args = parser.parse_args()

torch.manual_seed(0)
data = load_diabetes()
x = torch.tensor(data.data, dtype=torch.float32)
x = (x - x.mean(0)) / x.std(0)
y = torch.tensor(data.target, dtype=torch.float32)[:, None]
y = (y - y.mean()) / y.std()
loader = DataLoader(TensorDataset(x[:360], y[:360]), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-3)

step = 0
while step < args.steps:
    for features, targets in loader:
        optimizer.zero_grad()
        F.mse_loss(model(features), targets).backward()
        optimizer.step()
        step += 1
        if step == args.steps:
            break

model.eval()
with torch.no_grad():
    print(F.mse_loss(model(x[360:]), y[360:]).item())
