"""Digits read row by row with an LSTM and RMSprop."""

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


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 48, batch_first=True)
        self.head = nn.Linear(48, 10)

    def forward(self, x):
        _, (hidden, _) = self.lstm(x)
        return self.head(hidden[-1])


torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32) / 16
y = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=64, shuffle=True)
model = Rows()
optimizer = torch.optim.RMSprop(model.parameters(), lr=args.lr)

step = 0
while step < args.steps:
    for rows, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(rows), labels)
        loss.backward()
        optimizer.step()
        step += 1
        if step == args.steps:
            break

model.eval()
with torch.no_grad():
    print(F.cross_entropy(model(x[1400:]), y[1400:]).item())
