"""Rare defects of parts, drawn more often by a weighted sampler."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(3)
x = torch.randn(400, 6)
defect = ((x[:, 0] + x[:, 1] > 1.2).long() + (x[:, 2] > 1.5).long()).clamp(max=2)
per_class = 1.0 / defect.bincount(minlength=3).float()


def build_loader(batch_size: int) -> DataLoader:
    sampler = WeightedRandomSampler(per_class[defect], num_samples=len(defect))
    return DataLoader(TensorDataset(x, defect), batch_size=batch_size, sampler=sampler)


model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    total = 0.0
    for inputs, labels in build_loader(40):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / 10:.3f}")
