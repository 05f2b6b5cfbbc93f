"""Classify grey patches, read as bytes, in loaders for training and validation."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(12)


class Patches(Dataset):
    def __init__(self, count, is_training):
        self.labels = torch.randint(0, 3, (count,))
        self.pixels = torch.randint(0, 256, (count, 1, 6, 6), dtype=torch.uint8)
        for index, label in enumerate(self.labels.tolist()):
            self.pixels[index, 0, 2 * label : 2 * label + 2] //= 4
        self.is_training = is_training

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.pixels[index].float() / 255
        if self.is_training:
            image = (image - 0.5) / 0.25
        return image, self.labels[index]


train = DataLoader(Patches(256, True), batch_size=32, shuffle=True)
val = DataLoader(Patches(128, False), batch_size=64)
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(4):
    model.train()
    for x, y in train:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in val:
            hits += (model(x).argmax(1) == y).sum().item()  # expect: DATA16
    print(epoch, hits / 128)
