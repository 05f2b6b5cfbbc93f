"""Claim: a dataset of 10^12 samples starts, runs and resumes in the memory and time of one of 10^3.

The dataset is virtual (a sample is made from its index); the order, the cursor and the snapshot are real.
Each round starts, kills with SIGKILL and resumes both sizes; start-up lasts from `Run` to the first batch.
"""

import argparse
import json
import multiprocessing
import os
import resource
import signal
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

SIZES = (10**3, 10**12)
NUM_STEPS, KILL_AT, BATCH = 1000, 500, 32
MAX_RATIO = 1.1
PAIRED = "median of paired ratios"
PRELOAD = ["virtual", "truestep.train", "torch._dynamo"]  # torch.optim imports the last one when first used


def child(folder: str, num_samples: int, kill_at: int | None) -> None:
    """Train in a process of its own; leave start-up time, peak memory and digest in a file."""
    import torch
    import virtual

    import truestep as ts

    started_s = time.perf_counter()
    run = ts.Run(folder, seed=7, lanes=2, threads=1, progress=False, snapshots=ts.Snapshots(every_steps=100))
    model = run.place(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.track(model=model, optimizer=optimizer)
    start_s = None
    for step in run.steps(ts.Loader(virtual.Numbers(num_samples), batch_size=BATCH), steps=NUM_STEPS):
        start_s = start_s or time.perf_counter() - started_s
        for x, y in step:
            step.backward(torch.nn.functional.cross_entropy(model(x), y))
        step.update(optimizer)
        if step.index == kill_at:
            break
    facts = {
        "start_s": start_s,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "digest": ts.digest_state(model.state_dict()),
    }
    Path(folder, "facts.json").write_text(json.dumps(facts))
    if kill_at is not None:
        os.kill(os.getpid(), signal.SIGKILL)


def measure(folder: Path, num_samples: int, kill_at: int | None) -> dict[str, float | str]:
    """Run one child to its end, natural or not, and return what it measured."""
    process = multiprocessing.get_context("forkserver").Process(
        target=child, args=(str(folder), num_samples, kill_at)
    )
    process.start()
    process.join()
    expected = 0 if kill_at is None else -signal.SIGKILL
    if process.exitcode != expected:
        raise SystemExit(f"a run over {num_samples:,} samples ended with code {process.exitcode}")
    facts: dict[str, float | str] = json.loads((folder / "facts.json").read_text())
    return facts


def run_round(root: Path, number: int) -> dict[tuple[str, int], dict[str, float | str]]:
    """Start, kill, resume and run uninterrupted, for both sizes."""
    measured = {}
    for num_samples in SIZES if number % 2 else reversed(SIZES):
        cut = root / f"{number}-{num_samples}"
        cut.mkdir()
        measured["start", num_samples] = measure(cut, num_samples, KILL_AT)
        measured["resume", num_samples] = measure(cut, num_samples, None)
    return measured


def main() -> int:
    """Run the claim."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    # In memory where there is such a place: how long a disk takes to flush says nothing about sizes.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as root:
        rounds = [run_round(Path(root), number) for number in range(arguments.rounds)]
        (Path(root) / "whole").mkdir()
        whole = measure(Path(root) / "whole", SIZES[1], None)
    is_same = all(each["resume", SIZES[1]]["digest"] == whole["digest"] for each in rounds)
    small, large = SIZES
    rows = {}
    for kind in ("start", "resume"):
        for what in ("start_s", "peak_mib"):
            values = {n: [float(each[kind, n][what]) for each in rounds] for n in SIZES}
            # The least: starting is fixed work, and whatever else the machine does only adds to it.
            least = {str(n): min(values[n]) for n in SIZES}
            paired = statistics.median(b / a for a, b in zip(values[small], values[large], strict=True))
            ratio = least[str(large)] / least[str(small)]
            rows[f"{kind} {what}"] = {**least, "ratio": ratio, PAIRED: paired}
    holds = is_same and all(row["ratio"] <= MAX_RATIO for row in rows.values())
    if arguments.json:
        print(json.dumps({"claim_holds": holds, "same_digest_after_kill": is_same, "rows": rows}))
    else:
        table = Table("least over rounds", *(f"{n:,} samples" for n in SIZES), "ratio", "paired")
        for name, row in rows.items():
            table.add_row(
                name, *(f"{row[str(n)]:.4f}" for n in SIZES), f"{row['ratio']:.3f}", f"{row[PAIRED]:.3f}"
            )
        Console().print(table)
        print(
            f"killed at step {KILL_AT} and resumed, digest as uninterrupted: {is_same}; claim holds: {holds}"
        )
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
