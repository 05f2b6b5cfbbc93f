"""The weights of replicas differ from process to process.

## What it finds
Parameters inside of a `DistributedDataParallel` wrapper that have other bits in one process than in another
after the same step; parameters of the same optimizer that no wrapper holds, if they were equal at first;
and without a wrapper, parameters that differ although all processes have applied the
same gradients.

## Why it matters
Replicas are equal at the start and get equal gradients, so they stay equal. If they differ, gradients were
not exchanged, or each process changes weights in its own way: every process then trains a model of its own,
and only one of them is saved.

## How to fix
Call the wrapper in training, make the optimizer after wrapping, and change weights by hand in all processes
alike.
"""

from collections.abc import Iterator
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.surroundings import BESIDE, UNWRAPPED, ReplicaDigested

RULE = Meta(
    code="DIST02",
    severity="error",
    needs=(ReplicaDigested,),
    fix="Let gradients be exchanged: call the DDP wrapper, and change weights in all processes alike.",
    caused_by=("DIST01",),
)


def is_observed(evidence: Evidence) -> bool:
    """Whether several processes have left their weights' digests."""
    return sum(bool(one.of(ReplicaDigested)) for one in evidence.processes) > 1


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find the first step after which replicas differ."""
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
                f"replicas differ after step {key[0] + 1}: processes train models of their own",
                evidence=f"{len(names)} of {len(all_digests[0])} parameters differ in {len(ranks)} of them: "
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
