"""An autoencoder of digits with Adam and two optimizers that step together."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--steps", type=int, default=150)
args = parser.parse_args()

torch.manual_seed(0)
x = torch.tensor(load_digits().data, dtype=torch.float32) / 16
loader = DataLoader(x[:1400], batch_size=64, shuffle=True)
encoder = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 8))
decoder = nn.Sequential(nn.Linear(8, 48), nn.GELU(), nn.Linear(48, 64))
first = torch.optim.Adam(encoder.parameters(), lr=args.lr)
second = torch.optim.AdamW(decoder.parameters(), lr=args.lr)

step = 0
while step < args.steps:
    for batch in loader:
        first.zero_grad()
        second.zero_grad()
        F.mse_loss(decoder(encoder(batch)), batch).backward()
        first.step()
        second.step()
        step += 1
        if step == args.steps:
            break

with torch.no_grad():
    print(F.mse_loss(decoder(encoder(x[1400:])), x[1400:]).item())
