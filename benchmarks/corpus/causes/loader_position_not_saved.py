"""Train on shuffled batches and go on from the last checkpoint, in the middle of an epoch."""

import argparse
import hashlib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_EPOCHS, SAVE_EVERY = 2, 4


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
    x = torch.randn(96, 8)
    dataset = TensorDataset(x, x[:, :3].argmax(1))
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]

    num_batches = len(dataset) // 16
    for epoch in range(step // num_batches, NUM_EPOCHS):
        generator = torch.Generator().manual_seed(epoch)
        loader = DataLoader(dataset, batch_size=16, shuffle=True, generator=generator)
        for rows, labels in loader:  # <- here
            loss = F.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step % SAVE_EVERY == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, args.out / "new.pt")  # <- here
                (args.out / "new.pt").replace(checkpoint)
            if step == num_batches * NUM_EPOCHS:
                break
    print("weights", digest(model))


if __name__ == "__main__":
    main()
