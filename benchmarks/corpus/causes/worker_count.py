"""Train on sequences that are shifted at random as they are read."""

import argparse
import hashlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class ShiftedSequences(Dataset):
    def __init__(self, length):
        phase = torch.arange(length, dtype=torch.float32)
        self.rows = torch.sin(phase[:, None] * 0.3 + torch.arange(12.0) * (1 + phase[:, None] % 3))
        self.labels = torch.arange(length) % 3

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        shift = int(torch.randint(-3, 4, ()))  # <- here
        return self.rows[index].roll(shift), self.labels[index]


def seed_worker(worker_id):
    torch.manual_seed(11 + worker_id)  # <- here


def digest(model):
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.numpy().tobytes())
    return found.hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(
        ShiftedSequences(48),
        batch_size=8,
        num_workers=args.workers,
        worker_init_fn=seed_worker,
    )
    for epoch in range(2):
        for rows, labels in loader:
            loss = F.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1} loss {loss.item():.4f}")
    print("weights", digest(model))


if __name__ == "__main__":
    main()
