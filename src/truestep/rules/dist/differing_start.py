"""A sharded model starts with different weights on each rank.

## What it finds
Parameters that differ between ranks when `fully_shard` is called, and are not loaded afterwards. Use
`--processes 2`.

## Why it matters
`DistributedDataParallel` copies the weights of the first rank to the others. `fully_shard` does not: each
rank keeps a part of the weights that it drew. The model is then put together from different ones, and
another number of ranks gives another model.

## How to fix
Seed all ranks alike before the model is built, `torch.manual_seed(0)`, and seed per rank after it. Or build
the model on the meta device and load or broadcast one state.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.structure import FileLoaded, StateLoaded
from truestep.watch.evidence.facts.surroundings import ModelSharded

RULE = Meta(
    code="DIST09",
    severity="error",
    is_observed=lambda evidence: sum(bool(process.of(ModelSharded)) for process in evidence.processes) > 1,
    needs=(ModelSharded,),
    fix="Seed all ranks alike before the model is built.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find the first model whose parameters differ."""
    processes = [process for process in evidence.processes if process.of(ModelSharded)]
    if len(processes) < 2 or any(map(_is_loaded, processes)):
        return
    for moments in zip(*(process.of(ModelSharded) for process in processes), strict=False):
        first = moments[0].facts.digests
        if any(moment.facts.digests.keys() != first.keys() for moment in moments):
            return  # each rank has its own part of the model
        names = [name for name in first if len({moment.facts.digests[name] for moment in moments}) > 1]
        if names:
            yield Finding.at(
                moments[0],
                f"{moments[0].facts.class_name} starts with different weights on each rank, and fully_shard "
                "does not copy them",
                evidence=f"{len(names)} of {len(first)} parameters differ on {len(moments)} ranks: "
                f"{', '.join(names[:4])}",
                step=0,
            )
            return


def _is_loaded(process: Process) -> bool:
    """Whether weights were loaded after the model was sharded."""
    begun_s = process.of(ModelSharded)[0].at_s
    loads: list[Moment[object]] = [*process.of(FileLoaded), *process.of(StateLoaded)]  # type: ignore[type-var]
    return any(moment.at_s > begun_s for moment in loads)
