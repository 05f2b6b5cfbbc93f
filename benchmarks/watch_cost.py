"""Claim: under `check`, a training loop takes almost the time that it takes alone.

Each loop trains for a number of steps bare and inside of `truestep.checking()`, in turns, in one process.
The hooks are those of the command; starting the script and evaluating rules is not in the time. The first 16
steps are all observed: what they cost more is given apart, and left out of the ratio.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from measure import Claim, Row, Sheet, report, spread
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

import truestep as ts

FIRST = 16
LONG_MS, MAX_LONG, MAX_MEDIAN, MAX_WORST = 10.0, 1.01, 1.02, 1.05


def mlp() -> Iterator[None]:
    """The smallest loop: nothing hides what is added."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = AdamW(model.parameters())
    x, y = torch.randn(32, 32), torch.randint(0, 10, (32,))
    while True:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        yield


def mlp_with_loader() -> Iterator[None]:
    """The usual parts: a loader, clipping, a scheduler, `loss.item()`."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = AdamW(model.parameters())
    scheduler = CosineAnnealingLR(optimizer, 100_000)
    data = TensorDataset(torch.randn(64_000, 32), torch.randint(0, 10, (64_000,)))
    losses = []
    for x, y in DataLoader(data, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        yield


def cnn() -> Iterator[None]:
    """A small convolutional network."""
    layers = (
        nn.Conv2d(1, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.Flatten(),
    )
    model = nn.Sequential(*layers, nn.LazyLinear(10))
    x, y = torch.randn(64, 1, 20, 20), torch.randint(0, 10, (64,))
    model(x)
    optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
    while True:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        yield


def lstm() -> Iterator[None]:
    """A recurrent network."""
    model, head = nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 10)
    optimizer = AdamW([*model.parameters(), *head.parameters()])
    x, y = torch.randn(32, 24, 32), torch.randint(0, 10, (32,))
    while True:
        optimizer.zero_grad()
        F.cross_entropy(head(model(x)[0][:, -1]), y).backward()
        optimizer.step()
        yield


def transformer() -> Iterator[None]:
    """Two layers of attention."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.Sequential(nn.Embedding(100, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, 100))
    optimizer = AdamW(model.parameters())
    x = torch.randint(0, 100, (16, 48))
    while True:
        optimizer.zero_grad()
        F.cross_entropy(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
        optimizer.step()
        yield


def gan() -> Iterator[None]:
    """Two models and two optimizers."""
    make, judge = nn.Linear(16, 32), nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    both = [AdamW(part.parameters()) for part in (make, judge)]
    real, ones, zeros = torch.randn(32, 32), torch.ones(32, 1), torch.zeros(32, 1)

    def update(number: int, loss: Tensor) -> None:
        both[number].zero_grad()
        loss.backward()
        both[number].step()

    while True:
        fake = make(torch.randn(32, 16))
        judged = F.binary_cross_entropy_with_logits
        update(1, judged(judge(real), ones) + judged(judge(fake.detach()), zeros))
        update(0, judged(judge(fake), ones))
        yield


LOOPS = (mlp, mlp_with_loader, gan, lstm, cnn, transformer)


def time_steps(loop: Callable[[], Iterator[None]], num_steps: int, context: Any) -> tuple[float, float]:
    """Return the seconds of the first steps and those of the others."""
    with context:
        torch.manual_seed(0)
        steps = loop()
        marks = [perf_counter()]
        for until in (FIRST, num_steps):
            for _ in range(until - FIRST if until > FIRST else FIRST):
                next(steps)
            marks.append(perf_counter())
    return marks[1] - marks[0], marks[2] - marks[1]


def measure(loop: Callable[[], Iterator[None]], num_steps: int, num_turns: int) -> Row:
    """Return what a loop costs bare and under check."""
    time_steps(loop, FIRST + 50, nullcontext())
    time_steps(loop, FIRST + 50, ts.checking())
    first, ratios, bare = [], [], []
    for _ in range(num_turns):
        alone, checked = (time_steps(loop, num_steps, kind) for kind in (nullcontext(), ts.checking()))
        first.append(checked[0] - alone[0])
        ratios.append(checked[1] / alone[1])
        bare.append(alone[1] / (num_steps - FIRST))
    found, step_s = spread(ratios), statistics.median(bare)
    return {
        "loop": loop.__name__,
        "bare step, ms": step_s * 1e3,
        "ratio": found.median,
        "low": found.low,
        "high": found.high,
        "more per step, us": (found.median - 1) * step_s * 1e6,
        "first 16 steps, s more": statistics.median(first),
    }


def main() -> int:
    """Measure all loops."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(loop, asked.steps, asked.turns) for loop in LOOPS]
    ratios = [float(row["ratio"]) for row in rows]  # type: ignore[arg-type]
    long = [ratio for row, ratio in zip(rows, ratios, strict=True) if float(row["bare step, ms"]) >= LONG_MS]  # type: ignore[arg-type]
    claims = [
        Claim(text=f"steps of {LONG_MS:g} ms and more", found=max(long, default=None), limit=MAX_LONG),
        Claim(text="median", found=statistics.median(ratios), limit=MAX_MEDIAN),
        Claim(text="worst", found=max(ratios), limit=MAX_WORST),
    ]
    sheets = [Sheet(title="under check, against bare", rows=rows, num_digits=3)]
    return report("watch_cost", sheets=sheets, claims=claims, as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
