"""What a step of `truestep.Run` costs over the same step of a bare loop, and what importing it adds to torch.

Both loops train the same MLP on batches that are made before, in one process, and take turns of a few steps,
so that both see the same noise.
Everything of the run is on: lane, record, finite check, snapshots scheduled; the bar is not drawn.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from time import perf_counter

import torch
import torch.nn.functional as F
from measure import Claim, Sheet, estimate_with_error, fact, report
from torch import Tensor, nn
from torch.optim import AdamW

import truestep as ts

MAX_STEP_US, MAX_IMPORT_S = 25.0, 0.1
NUM_BATCHES, TURN = 64, 24
IMPORT_CODE = """
from time import perf_counter as now
begun = now(); import torch; half = now(); import truestep; truestep.Run; print(now() - half)
"""
HELP_CODE = """
import sys
sys.argv = ["truestep", "--help"]
from truestep.cli import main
try:
    main()
except SystemExit:
    print("torch" in sys.modules)
"""


def make_model() -> nn.Module:
    """Return an MLP whose step takes about 400 us on one core: overhead cannot hide in it."""
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))


def make_batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(32, 32, generator=generator), torch.randint(0, 10, (32,), generator=generator))
        for _ in range(NUM_BATCHES)
    ]


def bare() -> Iterator[None]:
    """Train with a plain loop on batches that are cut already; one step for each `next`."""
    model = make_model()
    optimizer = AdamW(model.parameters(), fused=True)
    batches = make_batches()
    while True:
        for inputs, labels in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            yield


def with_run(folder: str, num_steps: int) -> Iterator[None]:
    """Train the same with `truestep.Run`."""
    with ts.Run(folder, seed=1, lanes=1, threads=1, progress=False) as run:
        model = run.place(make_model())
        optimizer = AdamW(model.parameters(), fused=True)
        run.track(model=model, optimizer=optimizer)
        loader = ts.Loader(make_batches(), batch_size=None, shuffle=False)
        for step in run.steps(loader, steps=num_steps):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            step.update(optimizer)
            yield


def take_turns(num_turns: int) -> list[float]:
    """Return for each pair of turns how many microseconds a step took more with the run."""
    with tempfile.TemporaryDirectory() as folder:
        loops = [bare(), with_run(folder, (num_turns + 2) * TURN)]
        times: list[list[float]] = [[], []]
        for _ in range(num_turns + 1):
            for loop, spent in zip(loops, times, strict=True):
                begun = perf_counter()
                for _ in islice(loop, TURN):
                    pass
                spent.append((perf_counter() - begun) / TURN)
        loops[1].close()  # type: ignore[attr-defined]  a generator
    return [(ours - plain) * 1e6 for plain, ours in zip(*times, strict=True)][1:]  # the first turns warm up


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    more = take_turns(options.turns)
    found, error = estimate_with_error(more, statistics.median)
    import_s = min(float(run_python(IMPORT_CODE)) for _ in range(5))
    row = {"us more per step, median": found, "±": error, "seconds to import": import_s}
    claims = [
        Claim(text="a step over the bare one", found=found, limit=MAX_STEP_US, error=error, unit="us"),
        Claim(text="importing truestep.Run over torch", found=import_s, limit=MAX_IMPORT_S, unit="s"),
        fact("`truestep --help` does not import torch", run_python(HELP_CODE) == "False"),
    ]
    return report(
        "overhead", sheets=[Sheet(title="truestep.Run", rows=[row])], claims=claims, as_json=options.json
    )


if __name__ == "__main__":
    sys.exit(main())
