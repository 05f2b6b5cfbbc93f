"""Classify bird calls from feature sequences, with random crops and noise as augmentation."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

FRAMES, BANDS, SPECIES = 40, 12, 3
CROP = 32


def calls(count, seed):
    rng = np.random.default_rng(seed)
    species = rng.integers(0, SPECIES, count)
    t = np.arange(FRAMES)[None, :, None]
    band = np.arange(BANDS)[None, None, :]
    sweep = np.sin(0.2 * (1 + species[:, None, None]) * t + 0.5 * band)
    return (sweep + 0.5 * rng.standard_normal(sweep.shape)).astype(np.float32), species


class BirdCalls(Dataset):
    def __init__(self, features, species, augment, seed=0):
        self.features = features
        self.species = species
        self.augment = augment
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        call = self.features[index]
        if self.augment:
            start = self.rng.integers(0, FRAMES - CROP + 1)
            call = call[start : start + CROP]
            call = call + 0.2 * self.rng.standard_normal(call.shape)
        else:
            call = call[:CROP]
        return torch.as_tensor(call, dtype=torch.float32), int(self.species[index])


def seed_worker(worker_id):
    worker = get_worker_info()
    worker.dataset.rng = np.random.default_rng(worker.seed)


class CallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(BANDS, 128, 5, padding=2)
        self.conv2 = nn.Conv1d(128, 128, 5, padding=2)
        self.out = nn.Linear(128, SPECIES)

    def forward(self, call):
        h = torch.relu(self.conv1(call.transpose(1, 2)))
        return self.out(torch.relu(self.conv2(h)).mean(dim=2))


def main():
    torch.manual_seed(0)
    features, species = calls(384, seed=0)
    train = BirdCalls(features[:320], species[:320], augment=True)
    test = BirdCalls(features[320:], species[320:], augment=False)
    train_loader = DataLoader(
        train,
        batch_size=32,
        shuffle=True,
        num_workers=2,
        worker_init_fn=seed_worker,
        persistent_workers=True,
    )
    test_loader = DataLoader(test, batch_size=64)
    model = CallNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        model.train()
        for call, label in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(call), label)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            hits = sum((model(call).argmax(1) == label).sum().item() for call, label in test_loader)
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {hits / len(test):.3f}")


if __name__ == "__main__":
    main()
