"""Sort grains by variety from size, colour and texture measurements."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIETIES = ("spelt", "einkorn", "emmer", "durum")
MEASUREMENTS = 16


class Grains(Dataset):
    """One block of rows for each variety, as the laboratory delivers them."""

    def __init__(self, per_variety, seed):
        means = np.random.default_rng(0).normal(size=(len(VARIETIES), MEASUREMENTS))
        rng = np.random.default_rng(seed)
        rows, labels = [], []
        for label, mean in enumerate(means):
            rows.append(mean + 1.5 * rng.normal(size=(per_variety, MEASUREMENTS)))
            labels += [label] * per_variety
        self.rows = torch.tensor(np.concatenate(rows), dtype=torch.float32)
        self.labels = torch.tensor(labels)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], self.labels[index]


class GrainNet(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.fc1 = nn.Linear(MEASUREMENTS, width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, len(VARIETIES))

    def forward(self, x):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def get_loaders(batch_size=32):
    train_loader = DataLoader(Grains(160, seed=1), batch_size=batch_size)  # expect: DATA04
    test_loader = DataLoader(Grains(40, seed=2), batch_size=batch_size)
    return train_loader, test_loader


def evaluate(model, loader):
    model.eval()
    hits = seen = 0
    with torch.no_grad():
        for rows, labels in loader:
            hits += (model(rows).argmax(dim=1) == labels).sum().item()
            seen += len(labels)
    return hits / seen


def main():
    torch.manual_seed(0)
    train_loader, test_loader = get_loaders()
    model = GrainNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(4):
        model.train()
        for rows, labels in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(rows), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: last loss {loss.item():.4f}, test accuracy {evaluate(model, test_loader):.3f}")


if __name__ == "__main__":
    main()
