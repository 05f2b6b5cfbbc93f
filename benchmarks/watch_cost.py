"""Claim: once its first 16 steps are over, a training loop takes hardly longer under `check` than bare.

Loops run bare and inside `truestep.checking()` in turns, in one process. Steps 17 to 1,016 are judged, the
windows of 8 in every 256 among them; the first 16 are stated apart. Times are the process's processor time.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told (too noisy a machine).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from time import process_time
from typing import NamedTuple

import torch
import torch.nn.functional as F
from measure import Claim, Row, Sheet, report, spread
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, TensorDataset

import truestep

NUM_FIRST, NUM_STEPS = 16, 1_000
MAX_LONG, MAX_MEDIAN, MAX_WORST = 1.01, 1.02, 1.05
LONG_S = 0.010


class Loop(NamedTuple):
    """A model, what it is given, and its loss; with or without a loader, clipping and a scheduler."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    labels: Callable[[], Tensor]
    is_dressed: bool = False


class Words(nn.Module):
    """A small language model."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(256, width), nn.Linear(width, 256)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(self.embed(tokens))).mean(1)
        return scores


def mlp() -> nn.Module:
    """Three layers."""
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def cnn() -> nn.Module:
    """Two convolutions."""
    body = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def classes() -> Tensor:
    """Return labels of one batch."""
    return torch.randint(0, 10, (32,))


def wide_mlp() -> nn.Module:
    """Two million weights."""
    body = (nn.Linear(32, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU())
    return nn.Sequential(*body, nn.Linear(1024, 10))


LOOPS = {
    "tiny MLP": Loop(mlp, lambda: torch.randn(32, 32), classes),
    "tiny MLP with loader, clipping, scheduler": Loop(mlp, lambda: torch.randn(32, 32), classes, True),
    "wide MLP": Loop(wide_mlp, lambda: torch.randn(32, 32), classes),
    "small CNN": Loop(cnn, lambda: torch.randn(32, 1, 16, 16), classes),
    "small transformer": Loop(Words, lambda: torch.randint(0, 256, (8, 64)), lambda: classes()[:8]),
}


class Times(NamedTuple):
    """Seconds of the first steps and of those after them."""

    first: float
    later: float


def train(loop: Loop, *, is_checked: bool) -> Times:
    """Train from the beginning; return how long it took."""
    torch.manual_seed(0)
    model = loop.make()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    if not is_checked:
        return run(loop, model, optimizer)
    with truestep.checking():
        return run(loop, model, optimizer)


def run(loop: Loop, model: nn.Module, optimizer: Optimizer) -> Times:
    """Do all steps of a loop."""
    pairs = [(loop.inputs(), loop.labels()) for _ in range(16)]
    if loop.is_dressed:
        data = TensorDataset(*(torch.cat(items) for items in zip(*pairs, strict=True)))
        pairs = DataLoader(data, batch_size=32, shuffle=True)  # type: ignore[assignment]
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=NUM_STEPS)
    marks, step = [process_time()], 0
    while True:
        for inputs, labels in pairs:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            if loop.is_dressed:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if loop.is_dressed:
                scheduler.step()
            step += 1
            if step in (NUM_FIRST, NUM_FIRST + NUM_STEPS):
                marks.append(process_time())
        if len(marks) == 3:
            return Times(marks[1] - marks[0], marks[2] - marks[1])


def measure(name: str, *, num_rounds: int) -> Row:
    """Return how long steps of one loop take, bare and checked in turns."""
    loop = LOOPS[name]
    rounds = [(train(loop, is_checked=False), train(loop, is_checked=True)) for _ in range(num_rounds)]
    ratios = spread([checked.later / bare.later for bare, checked in rounds])
    return {
        "loop": name,
        "bare step, us": statistics.median(bare.later for bare, _ in rounds) / NUM_STEPS * 1e6,
        "under check": ratios.median,
        "lowest quarter": ratios.low,
        "highest quarter": ratios.high,
        "error": ratios.error,
        "first 16 steps, s more": statistics.median(checked.first - bare.first for bare, checked in rounds),
    }


def main() -> int:
    """Measure all loops."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="of each loop, bare and checked")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(name, num_rounds=asked.rounds) for name in LOOPS]
    ratios = [float(row["under check"] or 0) for row in rows]
    long = [row for row in rows if float(row["bare step, us"] or 0) >= LONG_S * 1e6]
    worst, longest = (
        max(some, key=lambda row: float(row["under check"] or 0), default=None) for some in (rows, long)
    )
    claims = [
        Claim(text="median of all loops", found=statistics.median(ratios), limit=MAX_MEDIAN),
        *(
            Claim(
                text=text, found=float(row["under check"] or 0), limit=limit, error=float(row["error"] or 0)
            )
            for text, row, limit in (
                ("worst loop", worst, MAX_WORST),
                ("worst loop with steps of 10 ms and more", longest, MAX_LONG),
            )
            if row
        ),
    ]
    return report(
        "watch_cost",
        sheets=[Sheet(title="watch_cost", rows=rows, num_digits=3)],
        claims=claims,
        as_json=asked.json,
    )


if __name__ == "__main__":
    sys.exit(main())
