import os
import tempfile

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


def write_files(folder, n=90):
    for i in range(n):
        label = i % 3
        clip = torch.randn(16) * 0.5
        clip[label * 5:label * 5 + 5] += 1.0
        torch.save({"clip": clip, "label": label}, os.path.join(folder, f"clip_{i:04d}_{label}.pt"))


class Clips(Dataset):
    def __init__(self, folder):
        self.paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        item = torch.load(self.paths[index], weights_only=True)
        return item["clip"], item["label"]


def run(folder):
    write_files(folder)
    data = Clips(folder)
    train, valid = torch.utils.data.random_split(data, [72, 18], torch.Generator().manual_seed(0))
    train_loader = DataLoader(train, batch_size=12, shuffle=True)
    valid_loader = DataLoader(valid, batch_size=18)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(4):
        model.train()
        for clip, label in train_loader:
            optimizer.zero_grad()
            loss = loss_fn(model(clip), label)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            hits = sum((model(c).argmax(1) == l).sum().item() for c, l in valid_loader)
        print(epoch, hits / len(valid))


with tempfile.TemporaryDirectory() as folder:
    run(folder)
