"""What writing the record costs a step: the loop's own calls to the journal, and the same loop without.

Recorded makes the calls that a step of `Run` makes (its end, its wait for data, its loss, the learning rate,
the norm) and flushes as often as a loop of that speed does: twice a second. Judged: at 1,000 and at 100 steps
a second, with a learning rate that changes at each step and a clipped gradient's norm, at most 5 us a step.
Stated: tensors that are fetched late, and one flush, which a loop of slow steps pays for every step.
Given is the processor time of the quietest turns, since whatever else runs on a machine only adds.
All cases take turns.
Exit code: 0 the claims hold, 1 one fails, 2 one cannot be told (too noisy a machine).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from measure import Claim, Row, Sheet, estimate_with_error, interleave, report

from truestep.record import Record
from truestep.train.journal import Journal

MAX_US = 5.0
TICK_S = 0.5
NUM_STEPS = 2000


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a step writes, and how fast the loop is."""

    label: str
    steps_per_s: int
    is_moving: bool = False
    """Whether the learning rate changes at each step."""
    has_norm: bool = False
    is_fetched_late: bool = False
    """Whether the norm is a tensor until the flush, as on a GPU; on the CPU it is a number at once."""
    is_judged: bool = True


CASES = [
    Case(label="loss, 1,000 steps/s", steps_per_s=1000),
    Case(label="loss and rate, 1,000 steps/s", steps_per_s=1000, is_moving=True),
    Case(label="loss, rate and norm, 1,000 steps/s", steps_per_s=1000, is_moving=True, has_norm=True),
    Case(label="loss, rate and norm, 100 steps/s", steps_per_s=100, is_moving=True, has_norm=True),
    Case(
        label="norm left on the device, 1,000 steps/s",
        steps_per_s=1000,
        is_moving=True,
        has_norm=True,
        is_fetched_late=True,
        is_judged=False,
    ),
    Case(
        label="loss, rate and norm, 10 steps/s",
        steps_per_s=10,
        is_moving=True,
        has_norm=True,
        is_judged=False,
    ),
]


def turn(case: Case, folder: Path, *, is_recorded: bool) -> float:
    """Run some thousand steps that do nothing but record; return processor seconds per step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    norm = torch.tensor(1.25)
    path = folder / "record.jsonl"
    path.unlink(missing_ok=True)
    journal = Journal(Record(path))
    journal.name_rates([optimizer])
    per_flush = max(1, int(case.steps_per_s * TICK_S))
    group, add_step, clock = optimizer.param_groups[0], journal.steps.append, time.monotonic
    begun_s = time.process_time()
    for index in range(NUM_STEPS):
        if case.is_moving:
            group["lr"] = 0.1 / (index + 1)
        terms = [(0, 1.0 / (index + 1), 1.0)]
        if is_recorded:
            asked_s = clock()
            waited_s = clock() - asked_s
            journal.add_rate(optimizer, step=index)
            if case.has_norm:
                value = norm.detach() if case.is_fetched_late else norm.item()
                journal.add_value("grad_norm", value, step=index)
            add_step((index, clock(), terms, waited_s))
            if index % per_flush == per_flush - 1:
                journal.flush()
    return (time.process_time() - begun_s) / NUM_STEPS


Pairs = Sequence[tuple[float, float]]


def least(pairs: Pairs) -> float:
    """The quietest turn recorded less the quietest bare one: whatever else runs on a machine only adds."""
    return min(recorded for recorded, _ in pairs) - min(bare for _, bare in pairs)


def measure(folder: Path, *, seconds: float) -> list[Row]:
    contenders: dict[str, Callable[[], float]] = {}
    for case in CASES:
        for is_recorded in (True, False):
            contenders[f"{case.label} {is_recorded}"] = partial(turn, case, folder, is_recorded=is_recorded)
    found = interleave(contenders, seconds=seconds, min_rounds=10)
    rows: list[Row] = []
    for case in CASES:
        recorded, bare = (
            [value * 1e6 for value in found[f"{case.label} {which}"]] for which in (True, False)
        )
        pairs = list(zip(recorded, bare, strict=True))
        cost, error = estimate_with_error(pairs, least)
        turn(case, folder, is_recorded=True)
        rows.append(
            {
                "case": case.label,
                "us per step": cost,
                "error": error,
                "median": statistics.median(one - other for one, other in pairs),
                "turns": len(pairs),
                "bytes per step": (folder / "record.jsonl").stat().st_size / NUM_STEPS,
            }
        )
    return rows


def flush_us(folder: Path) -> float:
    """Return what a flush of one step with a rate and a norm takes, in microseconds of the processor."""
    case = Case(label="", steps_per_s=1, is_moving=True, has_norm=True)
    return min(turn(case, folder, is_recorded=True) for _ in range(5)) * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--seconds", type=float, default=20.0, help="in all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        rows = measure(Path(name), seconds=options.seconds)
        alone = flush_us(Path(name))
    claims = [
        Claim(
            text=f"writing the record ({case.label})",
            found=float(row["us per step"] or 0),
            limit=MAX_US,
            error=float(row["error"] or 0),
            unit="us per step",
        )
        for case, row in zip(CASES, rows, strict=True)
        if case.is_judged
    ]
    note = f"Processor time. A flush of one step takes {alone:.0f} us: slow loops pay it twice a second."
    sheets = [Sheet(title="What writing the record costs", rows=rows, note=note, num_digits=2)]
    return report("record_cost", sheets=sheets, claims=claims, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
