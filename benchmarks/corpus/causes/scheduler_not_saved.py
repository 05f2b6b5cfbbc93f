"""Train with a learning rate that warms up and decays, and go on from the last checkpoint."""

import argparse
import hashlib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

NUM_STEPS, SAVE_EVERY = 12, 4


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
    x = torch.randn(48, 6)
    y = x.prod(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = OneCycleLR(optimizer, max_lr=0.05, total_steps=NUM_STEPS)

    start = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)  # <- here
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]

    for step in range(start, NUM_STEPS):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
        if (step + 1) % SAVE_EVERY == 0:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step + 1,
            }
            torch.save(state, args.out / "new.pt")  # <- here
            (args.out / "new.pt").replace(checkpoint)
    print("weights", digest(model))


if __name__ == "__main__":
    main()
