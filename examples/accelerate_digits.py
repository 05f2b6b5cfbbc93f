"""Scikit-learn's digits with Accelerate, as its documentation shows: nothing here knows of truestep."""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from scipy.stats import binomtest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=30)
args = parser.parse_args()

set_seed(7)
accelerator = Accelerator(cpu=True)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
dataset = TensorDataset(images, torch.tensor(digits.target))
train_set, test_set = random_split(dataset, [0.8, 0.2], torch.Generator().manual_seed(7))

model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1, bias=False),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.2),
    nn.Linear(32 * 16, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
train_loader = DataLoader(train_set, batch_size=128, shuffle=True)
test_loader = DataLoader(test_set, batch_size=128)
model, optimizer, train_loader, test_loader = accelerator.prepare(model, optimizer, train_loader, test_loader)

for _ in range(args.epochs):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()

num_right = 0
model.eval()
for x, y in test_loader:
    with torch.no_grad():
        predicted = model(x).argmax(1)
    predicted, told = accelerator.gather_for_metrics((predicted, y))
    num_right += int((predicted == told).sum())

x, y = images.flatten(1).numpy(), digits.target
logistic = LogisticRegression(max_iter=1000).fit(x[train_set.indices], y[train_set.indices])
low, high = binomtest(num_right, len(test_set)).proportion_ci(method="wilson")
accelerator.print(f"logistic regression  {logistic.score(x[test_set.indices], y[test_set.indices]):.3f}")
accelerator.print(
    f"network              {num_right / len(test_set):.3f} (95% interval {low:.3f} to {high:.3f})"
)
