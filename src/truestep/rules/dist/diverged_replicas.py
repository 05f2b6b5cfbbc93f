"""The weights of replicas differ between processes.

## What it finds
Parameters inside a `DistributedDataParallel` wrapper whose bits differ between processes after the same step.
Parameters of the same optimizer outside the wrapper count too if they were equal at the start. Without a
wrapper: parameters that differ although all processes applied the same gradients, or although others
of them are exchanged.

## Why it matters
Replicas start equal and get equal gradients, so they stay equal. If they differ, gradients were not
exchanged, or each process changes weights in a different way. Every process then trains a different model,
and only one of them is saved.

## How to fix
Call the wrapper in training, create the optimizer after wrapping, and if you change weights by hand, make the
same change in all processes.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.dist._ranks import allows_uneven
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.surroundings import BESIDE, UNWRAPPED, ReplicaDigested

RULE = Meta(
    code="DIST02",
    severity="error",
    is_observed=lambda evidence: sum(bool(one.of(ReplicaDigested)) for one in evidence.processes) > 1,
    needs=(ReplicaDigested,),
    is_lasting=True,
    fix="Call the DDP wrapper so that gradients are exchanged; change weights in all processes the same way.",
    caused_by=("DIST01",),
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find the first step after which replicas differ."""
    if allows_uneven(evidence):
        return  # a rank that has no more batches gets the others' weights at the end
    ranks = [found for process in evidence.processes if (found := _by_step(process))]
    done = set()
    for key in sorted(set.intersection(*(set(rank) for rank in ranks))) if ranks else ():
        moments = [rank[key] for rank in ranks]
        all_digests = [moment.facts.digests for moment in moments]
        names = [name for name in all_digests[0] if len({item.get(name) for item in all_digests}) > 1]
        wrapper = key[2]
        is_parallel = wrapper != UNWRAPPED or _has_same_gradients(moments)
        if wrapper == BESIDE or not is_parallel:
            names = [name for name in names if _was_equal(moments, name)]
            is_parallel = is_parallel or _are_others_exchanged(moments, names)
        if names and is_parallel and key[1:] not in done:
            done.add(key[1:])
            yield Finding.at(
                moments[0],
                f"replicas differ after step {moments[0].step + 1}: each process trains a different model",
                evidence=f"{len(names)} of {len(all_digests[0])} parameters differ on {len(ranks)} ranks: "
                f"{', '.join(names[:4])}",
            )


def _by_step(process: Process) -> dict[tuple[int, int, int], Moment[ReplicaDigested]]:
    """Return digests by the step since the first, the optimizer's place and the wrapper.

    Optimizers and steps are counted within what is compared: one rank may train something else before.
    """
    first: dict[tuple[int, int], int] = {}
    found = {}
    for item in process.of(ReplicaDigested):
        optimizer, wrapper = item.facts.optimizer, item.facts.wrapper
        since = first.setdefault((optimizer, wrapper), item.step)
        place = [key for key in first if key[1] == wrapper].index((optimizer, wrapper))
        found[item.step - since, place, wrapper] = item
    return found


def _are_others_exchanged(moments: list[Moment[ReplicaDigested]], names: list[str]) -> bool:
    """Whether others of the parameters have moved in the same way on all ranks, and not just one or a few."""
    first, facts = moments[0].facts.first_digests, [moment.facts for moment in moments]
    moved = [name for name in facts[0].digests if first.get(name) not in (None, facts[0].digests[name])]
    same = [name for name in moved if len({item.digests.get(name) for item in facts}) == 1]
    return len(same) > 1 and 4 * len(same) >= len([*same, *names])


def _was_equal(moments: list[Moment[ReplicaDigested]], name: str) -> bool:
    """Whether a parameter was the same in all processes before the first step, so that it is a replica."""
    digests = {moment.facts.first_digests.get(name) for moment in moments}
    return len(digests) == 1 and None not in digests


def _has_same_gradients(moments: list[Moment[ReplicaDigested]]) -> bool:
    """Whether gradients were exchanged by hand: without, each process may well train a model of its own."""
    return len({moment.facts.gradients for moment in moments}) == 1
