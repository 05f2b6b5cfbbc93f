"""A loader has more workers than there are cores.

## What it finds
A loader with more worker processes than cores that this process may use.

## Why it matters
Workers that share a core take turns, so data arrive no faster. Each worker takes time to start and memory for
its copy of the dataset and its prefetched batches, and all of them take cores away from training.

## How to fix
Use at most as many workers as cores, fewer if training runs on the same cores. Measure with 0, 1, 2 and 4.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.loaders import ObservedLoader, find_loaders
from truestep.watch.evidence.facts.loading import LoaderMade, LoaderUsed

RULE = Meta(
    code="PERF02",
    severity="info",
    needs=(LoaderUsed, LoaderMade),
    fix="Set num_workers to at most the number of cores, or fewer if training runs on them too.",
    is_quiet=True,
    is_preview=True,
)


def is_observed(evidence: Evidence) -> bool:
    """Whether a loader has workers."""
    return any(loader.facts.num_workers for loader in find_loaders(evidence))


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find loaders with too many workers."""
    for loader in find_loaders(evidence):
        workers, cores = loader.facts.num_workers, loader.facts.num_cores
        if loader.made is not None and cores and workers > cores:
            yield Finding.at(
                loader.made,
                "this loader has more workers than there are cores",
                evidence=f"{workers} workers on {cores} cores",
                cost=_cost(loader),
            )


def _cost(loader: ObservedLoader) -> str:
    starts = [moment.took_s for moment in loader.epochs]
    if loader.facts.is_persistent:
        starts = starts[:1]
    return f"{sum(starts):.2f} s to start workers, {len(starts)} times"
