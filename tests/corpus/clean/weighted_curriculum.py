"""Curriculum: labels lie sorted on disk, the order comes from a weighted sampler, so the loader has no
shuffle.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(131)

CLASSES, PER_CLASS, EPOCHS = 4, 200, 6


def sorted_archive(centres, per_class):
    """Samples in the order of their class, with a difficulty between 0 and 1."""
    labels = torch.arange(CLASSES).repeat_interleave(per_class)
    difficulty = torch.rand(len(labels))
    samples = centres[labels] + (0.5 + 1.5 * difficulty[:, None]) * torch.randn(len(labels), centres.size(1))
    return samples, labels, difficulty


def curriculum_loader(dataset, difficulty, progress, batch=50):
    """Easy samples first; with progress 1 all samples are equally likely."""
    weights = torch.exp(-4 * (1 - progress) * difficulty)
    sampler = WeightedRandomSampler(weights, num_samples=len(dataset), replacement=True)
    return DataLoader(dataset, batch_size=batch, sampler=sampler)


centres = 1.5 * torch.randn(CLASSES, 10)
samples, labels, difficulty = sorted_archive(centres, PER_CLASS)
test_samples, test_labels, _ = sorted_archive(centres, 80)
dataset = TensorDataset(samples, labels)
test_loader = DataLoader(TensorDataset(test_samples, test_labels), batch_size=160)

model = nn.Sequential(nn.Linear(10, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, CLASSES))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.CrossEntropyLoss()

for epoch in range(EPOCHS):
    model.train()
    loss_sum = 0.0
    for x, y in curriculum_loader(dataset, difficulty, progress=min(1.0, epoch / 3)):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.item() * len(y)

    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in test_loader:
            hits += (model(x).argmax(dim=1) == y).sum().item()
    print(f"epoch {epoch}: loss {loss_sum / len(dataset):.3f} accuracy {hits / len(test_labels):.3f}")
