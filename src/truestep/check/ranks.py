"""Ranks side by side: how long a step takes each, how much of it is its own work, and which rank is slow.

Owns what waiting is: a rank waits from its arrival at a collective to that of the last one. Prints nothing.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.loading import BatchFetched
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass, ParallelMade
from truestep.watch.evidence.facts.surroundings import RankEnded

_NUM_SKIPPED = 4
"""Steps at the beginning, which are observed more closely than others."""
_LEAST_STEPS = 4
_TIMES_SLOWER, _SLOWER_S = 1.3, 0.002


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """One rank: medians over its steps, in seconds."""

    rank: int
    steps: int
    """How many were compared; 0 if there were too few, and no times then."""
    step_s: float | None = None
    work_s: float | None = None
    """Without waiting for other ranks."""
    wait_s: float | None = None
    data_s: float | None = None
    """In its own work: waiting for the loader."""
    peak_bytes: int | None = None
    is_slow: bool = False
    """Whether its own work takes clearly longer than the others'."""

    def as_fields(self) -> dict[str, Any]:
        """Return what the command's JSON has."""
        return asdict(self)


Arrivals = dict[tuple[str, int], int]
"""When a rank entered a collective: by group and number, in ns."""


def compare_ranks(processes: Sequence[Process]) -> list[RankTimes]:
    """Return a row for each rank; nothing for one process."""
    if len(processes) < 2 or len({process.rank for process in processes}) < len(processes):
        return []
    ended = [process.of(RankEnded) for process in processes]
    arrived: list[Arrivals] = [
        {(group, number): at for group, number, at in item[-1].facts.arrivals} if item else {}
        for item in ended
    ]
    last: dict[tuple[str, int], list[int]] = defaultdict(list)
    for arrivals in arrived:
        for key, at in arrivals.items():
            last[key].append(at)
    complete = {key: max(values) for key, values in last.items() if len(values) > 1}
    rows = [
        _row(process, item[-1] if item else None, arrivals, complete)
        for process, item, arrivals in zip(processes, ended, arrived, strict=True)
    ]
    return _marked(rows)


def _row(  # limits: private to this module
    process: Process, ended: Moment[RankEnded] | None, arrivals: Arrivals, complete: Arrivals
) -> RankTimes:
    if ended is None:
        return RankTimes(rank=process.rank, steps=0)
    empty = RankTimes(rank=process.rank, steps=0, peak_bytes=ended.facts.peak_bytes)
    begun_ns = ended.facts.ended_ns - round(ended.at_s * 1e9)
    bounds = [moment.at_s + moment.took_s for moment in process.of(OptimizerStep) if moment.facts.counts]
    waits = _waits(arrivals, complete, _inner(process, begun_ns))
    if arrivals:  # the recorder keeps the last ones only
        oldest_s = (min(arrivals.values()) - begun_ns) / 1e9
        bounds = [bound for bound in bounds if bound >= oldest_s]
    bounds = bounds[_NUM_SKIPPED:]
    num_steps = len(bounds) - 1
    if num_steps < _LEAST_STEPS:
        return empty
    waited = _by_step(bounds, [((at - begun_ns) / 1e9, length / 1e9) for at, length in waits])
    data = _by_step(bounds, [(moment.at_s, moment.took_s) for moment in process.of(BatchFetched)])
    took = [after - before for before, after in pairwise(bounds)]
    waited = [min(wait, step) for wait, step in zip(waited, took, strict=True)]
    return replace(
        empty,
        steps=num_steps,
        step_s=median(took),
        work_s=median(step - wait for step, wait in zip(took, waited, strict=True)),
        wait_s=median(waited),
        data_s=median(data),
    )


def _inner(process: Process, begun_ns: int) -> list[tuple[int, int]]:
    """Return the backward passes of DDP: in each, a rank waits for its last collective only."""
    if not any(moment.facts.what == "DistributedDataParallel" for moment in process.of(ParallelMade)):
        return []
    passes = process.of(BackwardPass)
    return [
        (begun_ns + round(item.at_s * 1e9), begun_ns + round((item.at_s + item.took_s) * 1e9))
        for item in passes
    ]


def _waits(arrivals: Arrivals, complete: Arrivals, inner: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return when this rank began to wait for others, and for how long, in ns.

    It did not wait for a collective if it entered the next one before the first was complete: that one
    ran beside its work.
    """
    entered = sorted((at, complete[key]) for key, at in arrivals.items() if key in complete)
    begins = [begin for begin, _ in inner]
    waits = []
    for place, (at, complete_at) in enumerate(entered):
        following = entered[place + 1][0] if place + 1 < len(entered) else None
        index = bisect_right(begins, at) - 1
        is_inner = index >= 0 and following is not None and following <= inner[index][1]
        if not is_inner and (following is None or following >= complete_at):
            waits.append((at, complete_at - at))
    return waits


def _by_step(bounds: Sequence[float], spans: Sequence[tuple[float, float]]) -> list[float]:
    """Return how much time of the spans falls into each step, by where they begin."""
    sums = [0.0] * (len(bounds) - 1)
    for begun, length in spans:
        step = bisect_right(bounds, begun) - 1
        if 0 <= step < len(sums):
            sums[step] += length
    return sums


def _marked(rows: list[RankTimes]) -> list[RankTimes]:
    """Mark the rank whose own work takes longest, if it takes clearly longer than the others'."""
    known = [(row.work_s, place) for place, row in enumerate(rows) if row.work_s is not None]
    if len(known) < 2:
        return rows
    longest, place = max(known)
    usual = median(work for work, other in known if other != place)
    if longest > _TIMES_SLOWER * usual and longest > usual + _SLOWER_S:
        rows[place] = replace(rows[place], is_slow=True)
    return rows
