"""Tell malignant from benign tumours by 30 measurements, beside logistic regression on the same rows."""

import argparse

import torch
import torch.nn.functional as F
from scipy.stats import binomtest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.optim import AdamW
from torch.utils.data import TensorDataset
from torchmetrics import Accuracy

import truestep as ts

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=15)
args = parser.parse_args()

run = ts.Run("runs/tabular", seed=7, lanes=2)

# --- The rows that are kept for the end take no part in anything before it, not even in mean and spread. ---

table = load_breast_cancer()
features = torch.tensor(table.data, dtype=torch.float32)
target = torch.tensor(table.target)  # 0 malignant, 1 benign
train_rows, test_rows = (part.indices[:] for part in ts.split(table.data, [0.7, 0.3], seed=7))
mean, spread = features[train_rows].mean(0), features[train_rows].std(0)
features = (features - mean) / spread

# --- The network: two hidden layers, dropout against so few rows. ---

net = nn.Sequential(
    nn.Linear(30, 64),
    nn.ReLU(),
    nn.Dropout(0.3),
    nn.Linear(64, 32),
    nn.ReLU(),
    nn.Dropout(0.3),
    nn.Linear(32, 2),
)
model = run.place(net)
optimizer = AdamW(ts.decay_groups(model, weight_decay=0.1), lr=2e-3)
loader = ts.Loader(TensorDataset(features[train_rows], target[train_rows]), batch_size=32)
run.track(model=model, optimizer=optimizer)

for step in run.steps(loader, epochs=args.epochs):
    for x, y in step:
        step.backward(F.cross_entropy(model(x), y))
    step.update(optimizer)

# --- Both models meet the rows that they have not seen. ---


def tell(name: str, accuracy: float) -> None:
    num_rows = len(test_rows)
    low, high = binomtest(round(accuracy * num_rows), num_rows).proportion_ci(method="wilson")
    print(f"{name:20}  {accuracy:.3f}  {low:.3f} to {high:.3f}")


test_loader = ts.Loader(TensorDataset(features[test_rows], target[test_rows]), batch_size=64, shuffle=False)
accuracy = run.evaluate(model, test_loader, metric=Accuracy(task="multiclass", num_classes=2))

x, y = features.numpy(), table.target
logistic = LogisticRegression().fit(x[train_rows], y[train_rows])

print(f"{len(train_rows)} rows to learn from, {len(test_rows)} rows to be judged by\n")
print("                   accuracy  95% interval")
tell("always benign", y[test_rows].mean())
tell("logistic regression", logistic.score(x[test_rows], y[test_rows]))
tell("network", accuracy)
