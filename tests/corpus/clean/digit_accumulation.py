"""Digits with gradient accumulation: each step sees the exact mean over its group, also the short last
group.
"""

from itertools import islice

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)

MICRO_BATCH = 32
MICRO_BATCHES_PER_STEP = 4
EPOCHS = 4


class DigitNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 4, 10)

    def forward(self, x):
        x = F.max_pool2d(F.gelu(self.conv1(x)), 2)
        x = F.max_pool2d(F.gelu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def groups(loader, size):
    """Yield lists of up to `size` consecutive micro-batches; the last list of an epoch may be shorter."""
    batches = iter(loader)
    while group := list(islice(batches, size)):
        yield group


digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
labels = torch.tensor(digits.target)
order = torch.randperm(len(images))
train_idx, val_idx = order[:1330], order[1330:]
train_loader = DataLoader(TensorDataset(images[train_idx], labels[train_idx]), MICRO_BATCH, shuffle=True)
val_loader = DataLoader(TensorDataset(images[val_idx], labels[val_idx]), 128)

model = DigitNet()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

for epoch in range(EPOCHS):
    model.train()
    loss_sum, steps = 0.0, 0
    for group in groups(train_loader, MICRO_BATCHES_PER_STEP):
        samples = sum(len(y) for _, y in group)
        optimizer.zero_grad()
        for x, y in group:
            loss = F.cross_entropy(model(x), y, reduction="sum") / samples
            loss.backward()
            loss_sum += loss.item() * samples
        optimizer.step()
        steps += 1

    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in val_loader:
            correct += (model(x).argmax(dim=1) == y).sum().item()
    print(
        f"epoch {epoch}: {steps} steps, loss {loss_sum / len(train_idx):.3f}, "
        f"accuracy {correct / len(val_idx):.3f}"
    )
