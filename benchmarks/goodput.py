"""Claim: the formula for goodput, which `truestep run` suggests an interval by, is what a simulation finds.

Goodput is the share of time that goes into steps which are never done again. A seeded simulation follows a
run event by event (steps, snapshots, a writer that may be busy, failures, also of restarts); the formula is
`truestep.run.train.interval.goodput`. Failure rates are those that were published of large clusters: inputs,
as all figures of `CLUSTER` are. Nothing here ran on such a cluster. Takes about 20 s.
Prints tables, or with --json one JSON object. Exit status 0 only if every claim holds.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from measure import Claim, Row, Sheet, report

from truestep.run.train.interval import best_interval, goodput

DAY_S = 86_400.0
RANKS = (10, 100, 1000, 10_000)
RANKS_PER_NODE = 8
LLAMA, RSC_1, RSC_2 = "Llama 3", "RSC-1", "RSC-2"
FAILURES_PER_NODE_DAY = {
    LLAMA: 419 / 54 / (16_384 / RANKS_PER_NODE),
    RSC_1: 6.50 / 1000,
    RSC_2: 2.34 / 1000,
}
"""Published, cited from memory: 419 unexpected interruptions in 54 days on 16,384 GPUs (The Llama 3 Herd of
Models, 2024); 6.50 and 2.34 failures per thousand node-days on two clusters of nodes of 8 GPUs (Revisiting
Reliability in Large-Scale Machine Learning Research Clusters, 2024)."""
BURSTY_SHAPE = 0.7
"""Of a Weibull distribution: failures come in bursts, as they were found to in older large machines."""
MOST_OFF = 0.005
NUM_SNAPSHOTS, MIN_FAILURES, MAX_FAILURES = 100_000, 30, 20_000
"""To follow in one simulation: where failures are rare, few of them tell enough, as little is lost."""
FIXED_S = (600.0, 3600.0)
MOST_SHARE = 0.01
"""Of the time that snapshots by time may take, by truestep's own rule."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What decides over goodput, in seconds."""

    failure_every_s: float
    held_s: float
    write_s: float
    restart_s: float
    step_s: float = 5.0

    def formula(self, interval_s: float) -> float:
        return goodput(
            interval_s,
            held_s=self.held_s,
            failure_every_s=self.failure_every_s,
            write_s=self.write_s,
            restart_s=self.restart_s,
        )

    @property
    def best_s(self) -> float:
        """The best interval that can be kept: the writer has to be done with one snapshot before the next."""
        best_s = best_interval(self.held_s, failure_every_s=self.failure_every_s)
        return max(best_s, self.write_s, self.step_s)


CLUSTER = {"held_s": 0.5, "write_s": 40.0, "restart_s": 200.0}
"""Inputs, not ours: 10 GB of state for each rank, copied to the host at 20 GB/s and written by a node of
eight ranks at 2 GB/s; a restart notices (30 s), gets another node (120 s), starts (10 s), reads (40 s)."""


def simulate(case: Case, interval_s: float, *, draw: Callable[[], float]) -> float:
    """Follow a run through many failures; return the share of its time that was not lost.

    `draw` gives the time from one failure to the next.
    """
    clock_s = kept_s = 0.0
    num_failures = NUM_SNAPSHOTS * interval_s / case.failure_every_s
    for _ in range(int(min(max(num_failures, MIN_FAILURES), MAX_FAILURES))):
        fails_s = clock_s + draw()
        begun_s = clock_s + case.restart_s
        if begun_s < fails_s:
            kept_s += _live(case, interval_s, lasts_s=fails_s - begun_s)
        clock_s = fails_s
    return kept_s / clock_s


def _live(case: Case, interval_s: float, *, lasts_s: float) -> float:
    """Train for so long, then fail; return how much training the last written snapshot holds."""
    now_s = trained_s = written_s = since_s = 0.0
    pending: tuple[float, float] | None = None  # when the snapshot under way is written, and what it holds
    while True:
        # Steps are done whole, and one is due when the interval has passed and the writer is idle.
        due_s = max(interval_s - since_s, case.step_s)
        if pending is not None:
            due_s = max(due_s, pending[0] - now_s)
        num_steps = math.ceil(due_s / case.step_s - 1e-9)
        now_s += num_steps * case.step_s
        trained_s += num_steps * case.step_s
        if pending is not None and pending[0] <= min(now_s, lasts_s):
            written_s, pending = pending[1], None
        if now_s + case.held_s > lasts_s:
            return written_s
        now_s += case.held_s
        since_s = 0.0
        pending = (now_s + case.write_s, trained_s)


def at_random(case: Case, seed: int) -> Callable[[], float]:
    source = random.Random(seed)
    return lambda: source.expovariate(1 / case.failure_every_s)


def in_bursts(case: Case, seed: int) -> Callable[[], float]:
    source = random.Random(seed)
    scale_s = case.failure_every_s / math.gamma(1 + 1 / BURSTY_SHAPE)
    return lambda: source.weibullvariate(scale_s, BURSTY_SHAPE)


def make_case(rate: str, num_ranks: int) -> Case:
    failures_per_day = FAILURES_PER_NODE_DAY[rate] * math.ceil(num_ranks / RANKS_PER_NODE)
    return Case(failure_every_s=DAY_S / failures_per_day, **CLUSTER)


def compare(rate: str, num_ranks: int) -> tuple[Row, float]:
    """Return the row of one cluster size, and by how much formula and simulation differ at most."""
    case = make_case(rate, num_ranks)
    usual_s = max(5.0, case.held_s / MOST_SHARE)
    row: dict[str, float | str | None] = {
        "rate": rate,
        "ranks": f"{num_ranks:,}",
        "failure every, h": case.failure_every_s / 3600,
        "best interval, s": case.best_s,
        "goodput, %": 100 * case.formula(case.best_s),
    }
    off = []
    for interval_s in (case.best_s, *FIXED_S):
        found = simulate(case, interval_s, draw=at_random(case, seed=num_ranks))
        off.append(abs(found - case.formula(interval_s)))
        if interval_s == case.best_s:
            row["simulated, %"] = 100 * found
    row["in bursts, %"] = 100 * simulate(case, case.best_s, draw=in_bursts(case, seed=num_ranks))
    row[f"every {usual_s:.0f} s, %"] = 100 * case.formula(usual_s)
    for interval_s in FIXED_S:
        row[f"every {interval_s:,.0f} s, %"] = 100 * case.formula(interval_s)
    row["off by, points"] = 100 * max(off)
    return row, max(off)


def list_goodput() -> tuple[Sheet, Claim]:
    rows, offs = zip(*(compare(rate, num) for rate in FAILURES_PER_NODE_DAY for num in RANKS), strict=True)
    sheet = Sheet(
        title="Goodput, computed",
        rows=rows,
        note=(
            f"Inputs: {CLUSTER} s for each snapshot and restart, failures per node-day "
            f"{ {name: round(rate, 5) for name, rate in FAILURES_PER_NODE_DAY.items()} }."
        ),
        num_digits=2,
    )
    text = "goodput by the formula and by simulation, at the best interval, 10 min and 1 h"
    return sheet, Claim(text=text, found=max(offs), limit=MOST_OFF, unit="of the time apart")


def main() -> int:
    """Compute, print, and return 0 if every claim holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    sheet, claim = list_goodput()
    return report("goodput", sheets=[sheet], claims=[claim], as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
