"""Claim: the probes of `check` take at most 15 s and 2 % more memory, on models of 1M and of 124M parameters.

A language model is trained for some steps under the plan of `check`, in one process: with its probes, which
run copies of the model in a copy of the process, and without. A large model is probed only if that is
expected to be quick: on a busy machine it may not be, and the claim fails. Time is what the script waits for
them. Memory is the peak of all processes together, shared pages counted once; the two ways take turns.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import Claim, Row, Sheet, report
from watch_memory import BARE, LARGE, MAX_RATIO, MODEL, SIZES, measure, median_of

MAX_S = 15.0
WATCHED = """
import json, sys, tempfile, time
from truestep.check import check_plan
from truestep.watch.hooks.engine import watch_torch
from truestep.watch.inspect.probe.probes import _Probes
from truestep.watch.script.tape import Tape

answer, took = _Probes._answer, []

def timed(probes, question):
    begun = time.perf_counter()
    if sys.argv[1] == "with":
        answer(probes, question)
    took.append(time.perf_counter() - begun)

_Probes._answer = timed
with tempfile.TemporaryDirectory() as folder:
    tape = Tape(folder, check_plan())
    watch_torch(tape)
    begun = time.perf_counter()
    exec(compile(open("train.py").read(), "train.py", "exec"), {"__name__": "__main__"})
    loop = time.perf_counter() - begun
    tape.close()
print(json.dumps({"probes": took, "loop_s": loop}))
"""


def examine(size: int, *, steps: int, repeats: int) -> Row:
    """Return what the probes of a model of this size cost."""
    width, layers, words = SIZES[size]
    runs: dict[str, list[dict[str, Any]]] = {"with": [], "without": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = MODEL.format(width=width, layers=layers, words=words, device="cpu", steps=steps)
        (folder / "train.py").write_text(text + BARE)
        (folder / "watched.py").write_text(WATCHED)
        for _ in range(repeats):
            for way, found in runs.items():
                run = measure([sys.executable, "watched.py", way], folder, device="cpu")
                found.append({**run, **json.loads(run["printed"].splitlines()[-1])})
    taken = [sum(run["probes"]) for run in runs["with"]]
    peaks = {way: median_of(found, "peak_gb") for way, found in runs.items()}
    return {
        "parameters": f"{size}M",
        "probes": float(len(runs["with"][-1]["probes"])),
        "seconds": max(taken),
        "from": min(taken),
        "of a run of, s": median_of(runs["without"], "loop_s"),
        "peak_gb": peaks["with"],
        "without, gb": peaks["without"],
        "ratio": peaks["with"] / peaks["without"],
    }


def claims_of(rows: Sequence[Row]) -> list[Claim]:
    """Return what is claimed."""
    large = [float(row["ratio"] or 0) for row in rows if int(str(row["parameters"])[:-1]) >= LARGE]
    return [
        Claim(text="models without a probe", found=sum(not row["probes"] for row in rows), limit=0),
        Claim(
            text="seconds of all probes", found=max(float(row["seconds"] or 0) for row in rows), limit=MAX_S
        ),
        Claim(text=f"peak of memory, from {LARGE}M on", found=max(large, default=None), limit=MAX_RATIO),
    ]


def main() -> int:
    """Measure and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="1,124", help="millions of parameters, with commas")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sizes = map(int, given.sizes.split(","))
    rows = [examine(size, steps=given.steps, repeats=given.repeats) for size in sizes]
    sheets = [Sheet(title="probes of check", rows=rows, num_digits=3)]
    return report("probe_cost", sheets=sheets, claims=claims_of(rows), as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
