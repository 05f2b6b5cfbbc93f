"""A scheduler gets a different metric on each rank.

## What it finds
`ReduceLROnPlateau.step(metric)` whose metric differs between the ranks of one model. Use `--processes 2`.

## Why it matters
Each rank measures the metric on its own part of the data and decides alone. Sooner or later one rank lowers
its learning rate and another does not. From then on the replicas differ, and nothing reports it.

## How to fix
Average the metric over all ranks before you use it: `dist.all_reduce(metric)` and divide by the number of
ranks. Do the same for a metric that decides when to stop or what to save.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.dist._ranks import all_have
from truestep.watch.evidence.facts.optimizing import MetricGiven
from truestep.watch.evidence.facts.passes import ParallelMade

RULE = Meta(
    code="DIST11",
    severity="error",
    is_observed=lambda evidence: all_have(evidence, MetricGiven),
    needs=(ParallelMade, MetricGiven),
    is_lasting=True,
    fix="Average the metric over all ranks with dist.all_reduce before the scheduler gets it.",
)
_SAME = 1e-6
"""Relative: sums in another order differ by less."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find the first metric that differs."""
    for moments in zip(*(process.of(MetricGiven) for process in evidence.processes), strict=False):
        values = [moment.facts.value for moment in moments]
        is_apart = max(values) - min(values) > _SAME * max(map(abs, values))
        if len({moment.facts.scheduler for moment in moments}) == 1 and is_apart:
            shown = ", ".join(f"{value:.6g} on rank {rank}" for rank, value in enumerate(values[:6]))
            yield Finding.at(
                moments[0],
                "each rank gives the scheduler a different metric: learning rates can diverge",
                evidence=f"the metric is {shown}",
            )
            return
