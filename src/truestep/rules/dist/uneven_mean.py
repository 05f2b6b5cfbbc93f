"""Ranks average over different numbers of tokens, and DDP weighs all ranks alike.

## What it finds
A cross entropy with the mean over targets that are not ignored, in a model that several ranks train, where
one rank has at least twice as many such targets as another, and the loss is not weighted by their number.
Use `--processes 2`.

## Why it matters
Each rank divides by its own number of tokens, then gradients are averaged over ranks. A token on a rank with
few of them counts more than one on a rank with many. The result is not the mean over all tokens, and it
changes with the number of ranks.

## How to fix
Sum the loss over the rank's tokens and divide by the mean number of tokens per rank:
`loss = cross_entropy(..., reduction="sum") * size / total`, with `total` from `dist.all_reduce`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.dist._ranks import all_have
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.passes import BackwardPass, ClassesScored, ParallelMade
from truestep.watch.evidence.facts.surroundings import ReplicaDigested

RULE = Meta(
    code="DIST16",
    severity="warning",
    is_observed=lambda evidence: all_have(evidence, ClassesScored),
    needs=(ParallelMade, ClassesScored, BackwardPass),
    fix="Multiply the summed loss by the number of ranks and divide it by the number of all tokens.",
)
_LEAST_RATIO, _LEAST_PASSES = 2.0, 2
_SAME = 1e-3


class _Pass(NamedTuple):
    """A backward pass that begins at one cross entropy, and by what that was multiplied."""

    scored: Moment[ClassesScored]
    factor: float


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find means over different numbers of targets that all have the same weight."""
    if _has_hook(evidence):
        return
    found, num = [], 0
    for passes in zip(*map(_passes, evidence.processes), strict=False):
        num += 1
        if any(item is None for item in passes):
            return  # another loss
        known = [item for item in passes if item is not None]
        counts = [item.scored.facts.num_scored for item in known]
        factors = [item.factor for item in known]
        if max(factors) - min(factors) > _SAME * max(factors):
            return  # each rank's loss is weighted
        if max(counts) >= _LEAST_RATIO * max(1, min(counts)):
            found.append((known[0].scored, counts))
    if len(found) >= _LEAST_PASSES and 2 * len(found) > num:
        first, counts = found[0]
        shown = ", ".join(f"{count} on rank {rank}" for rank, count in enumerate(counts[:6]))
        yield Finding.at(
            first,
            "each rank averages over its own number of targets, and all ranks have the same weight",
            evidence=f"targets that are not ignored: {shown}; at least twice as many in "
            f"{len(found)} of {num} passes",
        )


def _has_hook(evidence: Evidence) -> bool:
    """Whether the script replaces how DDP averages: no replica is compared then."""
    is_wrapped = any(item.facts.what == "DistributedDataParallel" for item in evidence.of(ParallelMade))
    return is_wrapped and not any(item.facts.wrapper >= 0 for item in evidence.of(ReplicaDigested))


def _passes(process: Process) -> list[_Pass | None]:
    """Return each backward pass of the first steps; None for one that is not a plain mean."""
    scored, backward = process.of(ClassesScored), process.of(BackwardPass)
    last_s = max(item.at_s for item in scored) if scored else 0.0
    found: list[_Pass | None] = []
    since_s = float("-inf")
    for item in backward:
        own = [loss for loss in scored if since_s < loss.at_s < item.at_s]
        since_s = item.at_s
        if own:
            found.append(_read(own, item))
        if item.at_s > last_s:
            break
    return found


def _read(own: list[Moment[ClassesScored]], backward: Moment[BackwardPass]) -> _Pass | None:
    facts, total = own[0].facts, backward.facts.loss
    is_mean = len(own) == 1 and facts.reduction == "mean" and not facts.is_weighted
    if not is_mean or not isinstance(facts.loss, float) or total is None or not facts.loss > 0:
        return None
    return _Pass(own[0], total / facts.loss)
