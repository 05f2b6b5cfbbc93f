"""Trains with `Run` on a device. The self-test kills it and starts it again.

Usage: python resumed.py DEVICE FOLDER. Prints a digest of the weights when all steps are made.
"""

import hashlib
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import truestep as ts

NUM_STEPS = 60


def main() -> None:
    """Train from where the folder stands to the end."""
    device, folder = sys.argv[1:3]
    run = ts.Run(folder, seed=7, lanes=2, snapshots=ts.Snapshots(every_steps=5))
    inputs = torch.randn(512, 16, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    model = run.place(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2)))
    if next(model.parameters()).device.type != torch.device(device).type:
        raise SystemExit(f"Run has placed the model on {next(model.parameters()).device}, not on {device}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(ts.Loader(data, batch_size=32), steps=NUM_STEPS):
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y))
        step.update(optimizer, clip_norm=1.0)
        time.sleep(0.05)
        Path(f"{folder}-progress").write_text(str(step.index))
    bits = hashlib.sha256()
    for item in model.state_dict().values():
        bits.update(item.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    print(f"selftest: digest={bits.hexdigest()[:16]}", file=sys.stderr)


if __name__ == "__main__":
    main()
