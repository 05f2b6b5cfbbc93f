"""Train a small network on scikit-learn's digits. Kill it at any moment and run it again: same result."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import AdamW
from torch.utils.data import TensorDataset
from torchmetrics import Accuracy

import truestep as ts

run = ts.Run("runs/digits", seed=7, lanes=4)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
train_set, valid_set = ts.split(TensorDataset(images, torch.tensor(digits.target)), [0.8, 0.2], seed=7)

net = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1, bias=False),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.2),
    nn.Linear(32 * 16, 10),
)
model = run.place(net)
optimizer = AdamW(ts.decay_groups(model, weight_decay=0.05), lr=3e-3)
loader = ts.Loader(train_set, batch_size=256, workers=2)
valid_loader = ts.Loader(valid_set, batch_size=256, shuffle=False)
run.track(model=model, optimizer=optimizer)

for step in run.steps(loader, epochs=60):
    for x, y in step:
        step.backward(F.cross_entropy(model(x), y))
    step.update(optimizer, clip_norm=1.0)

print("accuracy", run.evaluate(model, valid_loader, metric=Accuracy(task="multiclass", num_classes=10)))
