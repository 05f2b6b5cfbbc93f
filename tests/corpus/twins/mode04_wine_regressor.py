"""Predict a quality score from physical and chemical measurements."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(3)

FEATURES = 11
N = 900


class QualityModel(nn.Module):
    def __init__(self, width=256, drop=0.3):
        super().__init__()
        self.fc1 = nn.Linear(FEATURES, width)
        self.fc2 = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)
        self.drop = drop

    def forward(self, x):
        h = F.relu(self.fc1(x))
        h = F.dropout(h, self.drop, training=self.training)
        h = F.relu(self.fc2(h))
        return self.out(h).squeeze(1)


# measurements are standardised; the score mixes a linear part and an interaction
x = torch.randn(N, FEATURES)
weights = torch.randn(FEATURES)
y = x @ weights / FEATURES**0.5 + 0.5 * x[:, 0] * x[:, 1] + 0.1 * torch.randn(N)

train_set, test_set = random_split(TensorDataset(x, y), [750, 150])
train_loader = DataLoader(train_set, batch_size=50, shuffle=True)
test_loader = DataLoader(test_set, batch_size=150)

model = QualityModel()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.MSELoss()

for epoch in range(6):
    model.train()
    running = 0.0
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        running += loss.item() * len(xb)

    model.eval()
    with torch.no_grad():
        test_mse = 0.0
        for xb, yb in test_loader:
            test_mse += criterion(model(xb), yb).item() * len(xb)
    print(f"epoch {epoch}: train {running / len(train_set):.4f} test {test_mse / len(test_set):.4f}")
