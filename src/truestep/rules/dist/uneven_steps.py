"""Ranks make a different number of steps.

## What it finds
A training loader with more batches on one rank than on another, or ranks that end with a different number of
optimizer steps, in a model that is wrapped in `DistributedDataParallel` or sharded. Scripts that use
`model.join()` or `Join` are not reported. Use `--processes 2`.

## Why it matters
Every step exchanges gradients. The rank with more batches waits for the others in a step that they never
make: the job hangs until a timeout, or ends with a closed connection.

## How to fix
Use a `DistributedSampler`, which gives every rank the same number of samples, or `drop_last=True`. For data
that cannot be even, put `with model.join():` around the loop.
"""

from collections.abc import Iterator

from truestep.hang import find_verdict
from truestep.rules import Evidence, Finding, Meta
from truestep.rules.dist._ranks import allows_uneven, is_parallel, shared_training_loaders
from truestep.rules.kit.loaders import ObservedLoader
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.loading import LoaderUsed
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import ParallelMade

RULE = Meta(
    code="DIST05",
    severity="error",
    is_observed=is_parallel,
    needs=(ParallelMade,),
    fix="Give every rank the same number of batches: a DistributedSampler or drop_last=True.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find loaders and loops of different lengths."""
    if allows_uneven(evidence):
        return
    processes = evidence.processes
    steps = [_num_steps(process) for process in processes]
    has_ended = all(process.ended == "finished" for process in processes)
    if has_ended and len(set(steps)) == 1:
        return  # a loop that ends before the longest loader does
    if not has_ended and find_verdict(evidence.standings) is None:
        return  # stopped early: what would have followed is not known
    found = list(_uneven_loaders(evidence))
    yield from found
    last = evidence.of(OptimizerStep)
    if not found and has_ended and last:
        yield Finding.at(
            last[-1],
            "ranks make a different number of steps",
            evidence=", ".join(f"{num} steps on rank {rank}" for rank, num in enumerate(steps[:8])),
        )


def _num_steps(process: Process) -> int:
    """Return how many steps it has made since the model is parallel: one rank may train alone before."""
    begun_s = min((moment.at_s for moment in process.of(ParallelMade)), default=0.0)
    before = [moment for moment in process.of(OptimizerStep) if moment.at_s < begun_s]
    return process.num_steps - sum(moment.facts.counts for moment in before)


def _uneven_loaders(evidence: Evidence) -> Iterator[Finding]:
    lengths = [
        {item.facts.loader: item.facts.length for item in one.of(LoaderUsed)} for one in evidence.processes
    ]
    for loaders in shared_training_loaders(evidence):
        counts = [length.get(loaders[0].number) for length in lengths]
        known = [count for count in counts if count is not None and count >= 0]
        if len(known) == len(counts) and len(set(known)) > 1:
            yield Finding.at(
                _place(loaders[0]),
                "ranks have a different number of batches: the one with more waits for steps that never come",
                evidence=", ".join(f"{num} batches on rank {rank}" for rank, num in enumerate(known[:8])),
                step=1,
            )


def _place(loader: ObservedLoader) -> Moment[object]:  # type: ignore[type-var]
    return loader.made or loader.epochs[0]
