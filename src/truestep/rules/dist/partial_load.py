"""A checkpoint is loaded on some ranks only, and the replicas differ.

## What it finds
`load_state_dict` of a model or an optimizer that some ranks call and others do not, in a job whose replicas
differ after it. Use `--processes 2`.

## Why it matters
`DistributedDataParallel` copies the weights of the first rank when it is created, and never again. A model
that one rank loads later, or an optimizer's momentum that only one rank has, sends the replicas apart.

## How to fix
Load on every rank, with `map_location`. Or load the model on rank 0 before it is wrapped in
`DistributedDataParallel`, and the optimizer on every rank.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.dist.diverged_replicas import check as find_diverged
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.passes import ParallelMade
from truestep.watch.evidence.facts.structure import StateLoaded
from truestep.watch.evidence.facts.surroundings import ReplicaDigested

RULE = Meta(
    code="DIST12",
    severity="error",
    needs=(ReplicaDigested,),
    fix="Load on every rank, or load the model on rank 0 before it is wrapped.",
)
_LOADED = ("model", "optimizer")


def is_observed(evidence: Evidence) -> bool:
    """Whether one of several ranks loads something."""
    return len(evidence.processes) > 1 and any(process.of(StateLoaded) for process in evidence.processes)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find what some ranks load and others do not, if replicas differ after it."""
    diverged = next(iter(find_diverged(evidence)), None)
    if diverged is None:
        return
    for what in _LOADED:
        loads = [_loads(process, what) for process in evidence.processes]
        most = max(loads, key=len)
        missing = [evidence.processes[place].rank for place, found in enumerate(loads) if not found]
        if most and missing and most[0].step < (diverged.step or 0):
            names = ", ".join(map(str, missing[:8]))
            yield Finding.at(
                most[0],
                f"the {what}'s state is loaded on some ranks only, and the replicas differ after it",
                evidence=f"{len(loads) - len(missing)} of {len(loads)} ranks load it; missing on rank "
                f"{names}; {diverged.evidence}",
            )
            return


def _loads(process: Process, what: str) -> list[Moment[StateLoaded]]:
    """Return what is loaded; a model before it is wrapped does not count, as DDP copies it to all ranks."""
    wrapped = [moment.at_s for moment in process.of(ParallelMade)]
    begun_s = min(wrapped, default=0.0) if what == "model" else 0.0
    return [item for item in process.of(StateLoaded) if item.facts.what == what and item.at_s >= begun_s]
