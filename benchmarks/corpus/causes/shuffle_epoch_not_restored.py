"""Train in epochs of shuffled batches and go on after the last epoch that was saved."""

import argparse
import hashlib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

NUM_EPOCHS = 4


def digest(model):
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.numpy().tobytes())
    return found.hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("checkpoints"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint = args.out / "last.pt"

    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(48, 8)
    dataset = TensorDataset(x, (x.norm(dim=1) > 2.8).long())
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True, seed=7)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    done = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["epoch"]

    for epoch in range(NUM_EPOCHS - done):  # <- here
        sampler.set_epoch(epoch)  # <- here
        for rows, labels in loader:
            loss = F.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {done + epoch + 1} loss {loss.item():.4f}", flush=True)
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": done + epoch + 1,
        }
        torch.save(state, args.out / "new.pt")
        (args.out / "new.pt").replace(checkpoint)
    print("weights", digest(model))


if __name__ == "__main__":
    main()
