"""The training step waits for its data.

## What it finds
A training loop that spends a large part of each step waiting for the next batch, measured over all steps
except the first.

## Why it matters
While the loop waits, nothing is trained. The share of the step spent waiting is the share of the machine's
time that is lost.

## How to fix
Prepare data in advance (decode once and store the result), load with `num_workers` and
`persistent_workers=True`, or replace slow work per sample by one operation per batch.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from statistics import median
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.loaders import ObservedLoader, find_loaders
from truestep.watch import Moment
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="PERF01",
    severity="warning",
    needs=(BackwardPass,),
    fix="Prepare samples once and store them, or load them in workers (num_workers, persistent_workers).",
    is_quiet=True,
)
_LEAST_STEPS = 6
_LEAST_SHARE, _LEAST_WAIT_S = 0.3, 0.002
_LEAST_WAIT_EACH_S = 100e-6
"""Putting samples together costs some microseconds for each; more is work on the sample itself."""
_LEAST_WAIT_OF_WORKERS_S, _LEAST_SHARE_OF_WORKERS = 0.015, 0.5
_LEAST_TO_WARN_S, _LEAST_EACH_TO_WARN_S = 0.03, 0.0015
"""Less is what reading a small file costs, and much only beside a tiny model."""
_QUANTILE = 0.2
"""What else runs on the machine makes some steps wait; four of five do only if the data are slow."""
_NUM_LOOKED_AT = 8
"""The first steps are slower for being looked at."""


def is_observed(evidence: Evidence) -> bool:
    """Whether enough steps could be measured."""
    loaders = [loader for loader in find_loaders(evidence) if loader.is_training]
    return any(len(_waits(loader)) >= _LEAST_STEPS for loader in loaders)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find training loaders that keep the loop waiting."""
    for loader in find_loaders(evidence):
        waits = _waits(loader) if loader.is_training else []
        if len(waits) < _LEAST_STEPS:
            continue
        wait_s, step_s = median(wait for wait, _ in waits), median(step for _, step in waits)
        share = median(wait / step for wait, step in waits)
        if _is_much(loader, waits):
            where = loader.batches[0]
            yield Finding.at(
                where,
                "training waits for its data",
                step=waits and where.step + 1,
                evidence=f"a batch takes {1000 * wait_s:.1f} ms, the whole step {1000 * step_s:.1f} ms "
                f"(medians of {len(waits)} steps); {loader.facts.num_workers} workers",
                cost=f"{share:.0%} of each step's time",
                severity=None if _is_heavy(loader, waits) else "info",
            )


def _is_much(loader: ObservedLoader, waits: list[tuple[float, float]]) -> bool:
    wait_s = _low(wait for wait, _ in waits)
    share = _low(wait / step for wait, step in waits)
    if loader.facts.num_workers:
        return wait_s >= _LEAST_WAIT_OF_WORKERS_S and share >= _LEAST_SHARE_OF_WORKERS
    each_s = wait_s / max(1, _num_samples(loader.batches[0]))
    return wait_s >= _LEAST_WAIT_S and each_s >= _LEAST_WAIT_EACH_S and share >= _LEAST_SHARE


def _is_heavy(loader: ObservedLoader, waits: list[tuple[float, float]]) -> bool:
    wait_s = _low(wait for wait, _ in waits)
    each_s = wait_s / max(1, _num_samples(loader.batches[0]))
    return wait_s >= _LEAST_TO_WARN_S and (loader.facts.num_workers > 0 or each_s >= _LEAST_EACH_TO_WARN_S)


def _low(values: Iterable[float]) -> float:
    found = sorted(values)
    return found[int(_QUANTILE * len(found))]


def _num_samples(batch: Moment[Any]) -> int:
    for tensor in batch.facts.tensors or ():
        shape = next((item for item in tensor or () if isinstance(item, list)), None)
        if shape:
            return int(shape[0])
    return 1


def _waits(loader: ObservedLoader) -> list[tuple[float, float]]:
    """Return, for each step within an epoch, how long its batch took, and how long until the next."""
    begins = [moment.at_s for moment in loader.epochs]
    num_ahead = 2 * loader.facts.num_workers  # so many are made while workers start
    trained, found = set(loader.trained), []
    place = -1
    for batch, later in pairwise(loader.batches):
        place += 1
        while begins and begins[0] <= batch.at_s:
            begins.pop(0)
            place = 0
        is_last = bool(begins) and begins[0] <= later.at_s
        is_last = is_last or later.step - batch.step > 1  # between windows nothing is seen of a loop
        if not is_last and place >= num_ahead and batch.step >= _NUM_LOOKED_AT and batch.step in trained:
            found.append((batch.took_s, max(later.at_s - batch.at_s, 1e-9)))
    return found
