"""Train a small network; most of a step is UNITS products of matrices. What planted knobs are tried on."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

UNITS = 60


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    args = parser.parse_args()

    torch.manual_seed(7)
    rows, labels = load_digits(return_X_y=True)
    rows, labels = torch.tensor(rows / 16, dtype=torch.float32), torch.tensor(labels)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    matrix = torch.randn(192, 192) / 192**0.5

    for step in range(args.steps):
        picked = torch.randint(len(labels), (32,))
        loss = F.cross_entropy(model(rows[picked]), labels[picked])
        optimizer.zero_grad()
        loss.backward()
        for _ in range(UNITS):
            matrix @ matrix
        optimizer.step()
        if step % 500 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
