"""An early-stopped classifier whose accuracy compares a column of predictions with a row of labels."""

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
cells = load_breast_cancer()
order = torch.randperm(len(cells.target))
x = torch.tensor(cells.data, dtype=torch.float32)[order]
y = torch.tensor(cells.target, dtype=torch.float32)[order]
x = (x - x[:400].mean(0)) / x[:400].std(0)
training = DataLoader(TensorDataset(x[:400], y[:400]), batch_size=40, shuffle=True)
held_out = DataLoader(TensorDataset(x[400:], y[400:]), batch_size=40)

model = nn.Sequential(nn.Linear(30, 24), nn.ReLU(), nn.Linear(24, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)


def accuracy():
    model.eval()
    hits = 0
    with torch.no_grad():
        for rows, labels in held_out:
            guesses = model(rows).squeeze(1).sigmoid().round()
            hits += (guesses == labels).float().mean().item() * len(labels)
    model.train()
    return hits / len(held_out.dataset)


best = 0.0
for _ in range(6):
    for rows, labels in training:
        optimizer.zero_grad()
        criterion(model(rows).squeeze(1), labels).backward()
        optimizer.step()
    best = max(best, accuracy())
print(f"best accuracy {best:.3f}")
