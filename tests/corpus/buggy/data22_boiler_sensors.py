"""Failures of boilers are predicted from sensor tables; each table is prepared by the same function."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

rng = np.random.default_rng(4)
torch.manual_seed(4)
SCALES = np.array([40.0, 3.0, 0.2, 900.0, 12.0])


def read_table(num, drift):
    state = rng.normal(size=(num, 5))
    failed = (state[:, 0] + 0.8 * state[:, 3] - state[:, 1] > 0.5).astype(np.int64)
    return (state + drift) * SCALES + 2 * SCALES, failed


def prepare(table):
    center = np.mean(table, axis=0)
    spread = np.std(table, axis=0) + 1e-9
    return ((table - center) / spread).astype(np.float32)


class Boilers(Dataset):
    def __init__(self, table, failed):
        self.features = table
        self.failed = failed

    def __len__(self):
        return len(self.failed)

    def __getitem__(self, row):
        return torch.from_numpy(self.features[row]), int(self.failed[row])


raw_train, failed_train = read_table(600, drift=0.0)
raw_test, failed_test = read_table(150, drift=0.3)
features_train = prepare(raw_train)
features_test = prepare(raw_test)  # expect: DATA22

train_loader = DataLoader(Boilers(features_train, failed_train), batch_size=40, shuffle=True)
test_loader = DataLoader(Boilers(features_test, failed_test), batch_size=75)

model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.CrossEntropyLoss()


def evaluate():
    model.eval()
    right = total = 0
    with torch.inference_mode():
        for features, failed in test_loader:
            right += (model(features).argmax(1) == failed).sum().item()
            total += len(failed)
    return right / total


for epoch in range(3):
    model.train()
    for features, failed in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(features), failed)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} accuracy {evaluate():.3f}")
