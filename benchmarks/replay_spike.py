"""Claim: `replay` goes back to a loss spike, names its sample and its first extreme value, and has its bits.

A transformer is trained with `Run` for thousands of steps on samples that each come once. One of them, in the
step that is asked for, is damaged. `Run` has to report the spike; `truestep replay` of that step has to give
the bits of the record, the sample by its index and the operation; and the exported folder has to give the
same losses and weights in a fresh process, elsewhere, bit for bit.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measure import Claim, Row, Sheet, report

from truestep.data.fetch import Orders

Answer = dict[str, Any]
BATCH, DAMAGED_LINE = 8, "damaged"
TRAIN = """
import torch
from torch import nn
from torch.nn import functional as F
import truestep as ts

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return {num_samples}

    def __getitem__(self, index):
        drawn = torch.Generator().manual_seed(index)
        x = torch.randn(12, 16, generator=drawn)
        y = x.mean(0).argmax()
        if index == {bad}:
            x[3] = 1e5  # damaged
        return x, y

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 16)

    def forward(self, x):
        return self.head((x + self.layers(x)).mean(1))

snapshots = ts.Snapshots(every_steps=500, every_s=None, keep=8)
with ts.Run("run", seed=3, lanes=2, snapshots=snapshots, progress=False) as run:
    model = run.place(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(ts.Loader(Samples(), batch_size={batch}), steps={num_steps}):
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y))
        step.update(optimizer, clip_norm=1.0)
"""


def start(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=3600)


def main() -> int:
    """Train, go back, and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--step", type=int, default=3000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    num_steps = given.step + 100
    num_samples = BATCH * num_steps
    order = Orders(range(num_samples), seed=3, shuffle=True).of(0)
    bad = int(order.indices(given.step * BATCH, (given.step + 1) * BATCH)[5])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = TRAIN.format(num_samples=num_samples, bad=bad, batch=BATCH, num_steps=num_steps, at=given.step)
        (folder / "train.py").write_text(text)
        trained = start([sys.executable, "train.py"], folder)
        words = [sys.executable, "-m", "truestep", "replay", "--step", str(given.step)]
        done = start([*words, "--format", "json", "--export", "alone", "run"], folder)
        if trained.returncode or done.returncode not in (0, 2):
            raise SystemExit(trained.stderr[-2000:] + done.stderr[-2000:])
        found = json.loads(done.stdout)
        moved = folder / "elsewhere"
        shutil.move(folder / "alone", moved) if (folder / "alone").is_dir() else moved.mkdir()
        alone = start([sys.executable, "step.py"], moved)
        size = sum(path.stat().st_size for path in moved.iterdir())
    return report(
        "replay_spike",
        sheets=[Sheet(title="one spike", rows=rows_of(found, trained.stderr, alone, size), num_digits=4)],
        claims=claims_of(found, trained.stderr, alone, step=given.step, bad=bad, text=text),
        as_json=given.json,
    )


def rows_of(found: Answer, told: str, alone: subprocess.CompletedProcess[str], size: int) -> list[Row]:
    """Return what was shown, for people."""
    lines = [line for line in told.splitlines() if "spike" in line]
    extreme = found["first_extreme"] or {}
    shown = {
        "Run": lines[0] if lines else "",
        "replayed from step": found["begun_at"],
        "losses compared": found["compared"],
        "first extreme value": f"line {extreme.get('line')}, {extreme.get('name')}: {extreme.get('largest')}",
        "export": f"{(found['export'] or {}).get('num_operations')} operations, {size / 1e3:.0f} kB",
        "alone": alone.stdout.strip().splitlines()[-1] if alone.stdout.strip() else alone.stderr[-200:],
    }
    return [{"what": what, "shown": str(words)} for what, words in shown.items()]


def claims_of(  # limits: one place for all claims
    found: dict[str, Any],
    told: str,
    alone: subprocess.CompletedProcess[str],
    *,
    step: int,
    bad: int,
    text: str,
) -> list[Claim]:
    """Return what is claimed, as the number of failures of each."""
    losses = dict(zip(found["samples"], found["sample_losses"], strict=False))
    extreme = found["first_extreme"] or {}
    line = next(at for at, words in enumerate(text.splitlines(), 1) if DAMAGED_LINE in words)
    forward = range(line - 8, len(text.splitlines()))
    held = {
        "Run reports the spike with its command": re.search(
            rf"loss spike at step {step}: .*truestep replay --step {step} run", told
        ),
        "the replay has the bits of the record": found["same"],
        "the damaged sample has the highest loss": losses and max(losses, key=losses.__getitem__) == bad,
        "an extreme value is named at a line of the script": extreme.get("line") in forward,
        "the export gives the bits in a fresh process": alone.returncode == 0,
    }
    return [Claim(text=words, found=float(not is_held), limit=0.0) for words, is_held in held.items()]


if __name__ == "__main__":
    sys.exit(main())
