"""The weights of replicas differ between processes.

## What it finds
Parameters inside a `DistributedDataParallel` wrapper whose bits differ between processes after the same step.
Parameters of the same optimizer outside the wrapper count too if they were equal at the start. Without a
wrapper: parameters that differ although all processes applied the same gradients.

## Why it matters
Replicas start equal and get equal gradients, so they stay equal. If they differ, gradients were not
exchanged, or each process changes weights in a different way. Every process then trains a different model,
and only one of them is saved.

## How to fix
Call the wrapper in training, create the optimizer after wrapping, and if you change weights by hand, make the
same change in all processes.
"""

from collections.abc import Iterator
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.dist._ranks import allows_uneven
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.surroundings import BESIDE, UNWRAPPED, ReplicaDigested

RULE = Meta(
    code="DIST02",
    severity="error",
    needs=(ReplicaDigested,),
    is_lasting=True,
    fix="Call the DDP wrapper so that gradients are exchanged; change weights in all processes the same way.",
    caused_by=("DIST01",),
)


def is_observed(evidence: Evidence) -> bool:
    """Whether several processes have left their weights' digests."""
    return sum(bool(one.of(ReplicaDigested)) for one in evidence.processes) > 1


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find the first step after which replicas differ."""
    if allows_uneven(evidence):
        return  # a rank that has no more batches gets the others' weights at the end
    ranks: list[dict[tuple[int, int, int], Moment[ReplicaDigested]]] = []
    for process in evidence.processes:
        found = {
            (item.step, item.facts.optimizer, item.facts.wrapper): item
            for item in process.of(ReplicaDigested)
        }
        if found:
            ranks.append(found)
    done = set()
    for key in sorted(set.intersection(*(set(rank) for rank in ranks))) if ranks else ():
        all_digests = [rank[key].facts.digests for rank in ranks]
        names = [name for name in all_digests[0] if len({item.get(name) for item in all_digests}) > 1]
        moments = [rank[key] for rank in ranks]
        if key[2] == BESIDE:
            names = [name for name in names if _was_equal(moments, name)]
        is_parallel = key[2] != UNWRAPPED or _has_same_gradients(moments)
        if names and is_parallel and key[1:] not in done:
            done.add(key[1:])
            yield Finding.at(
                ranks[0][key],
                f"replicas differ after step {key[0] + 1}: each process trains a different model",
                evidence=f"{len(names)} of {len(all_digests[0])} parameters differ on {len(ranks)} ranks: "
                f"{', '.join(names[:4])}",
            )


def _was_equal(moments: list[Moment[ReplicaDigested]], name: str) -> bool:
    """Whether a parameter was the same in all processes before the first step, so that it is a replica."""
    digests = {moment.facts.first_digests.get(name) for moment in moments}
    return len(digests) == 1 and None not in digests


def _recorded(*weights: str) -> Evidence:
    """Return evidence of processes with these digests of their one weight after the first step."""
    place: dict[str, Any] = {"file": "train.py", "line": 9, "function": "<module>"}
    processes = []
    for rank, digest in enumerate(weights):
        facts = ReplicaDigested(0, 0, {"weight": digest}, "ab", {})
        moment = Moment(facts=facts, step=0, at_s=1.0, took_s=0.0, **place)
        processes.append(Process(pid=rank, argv=[], rank=rank, size=len(weights), moments=[moment]))
    return Evidence(processes=processes)


BUGGY = _recorded("0a", "0b")
CLEAN = _recorded("0a", "0a")


def _has_same_gradients(moments: list[Moment[ReplicaDigested]]) -> bool:
    """Whether gradients were exchanged by hand: without, each process may well train a model of its own."""
    return len({moment.facts.gradients for moment in moments}) == 1
