"""All ranks train on the same batches.

## What it finds
A training loader that gives every rank the same samples in the same batches, in a model that is wrapped in
`DistributedDataParallel` or sharded with `fully_shard`. Use `--processes 2`.

## Why it matters
Data parallel training is faster because each rank works on other data. If all ranks have the same batches,
N processes compute what one could, and the batch size is not N times larger.

## How to fix
Pass `sampler=DistributedSampler(dataset)` to the training loader and call `sampler.set_epoch(epoch)` in each
epoch. For a stream, give each rank its own part of it.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.dist._ranks import is_parallel, shared_training_loaders
from truestep.rules.kit.loaders import ObservedLoader
from truestep.watch.evidence.facts.loading import SamplesSeen
from truestep.watch.evidence.facts.passes import ParallelMade

RULE = Meta(
    code="DIST04",
    severity="error",
    is_observed=lambda evidence: is_parallel(evidence) and any(shared_training_loaders(evidence)),
    needs=(ParallelMade, SamplesSeen),
    fix="Pass sampler=DistributedSampler(dataset) to the training loader.",
)
_LEAST_BATCHES, _LEAST_SAMPLES = 2, 3


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find loaders that give all ranks the same."""
    for loaders in shared_training_loaders(evidence):
        num = _num_same(loaders)
        if num:
            first = loaders[0]
            place = first.made or first.epochs[0]
            yield Finding.at(
                place,
                "every rank trains on the same batches: the work is repeated, not shared",
                evidence=f"the first {num} batches have the same samples on all {len(loaders)} ranks",
                cost=f"{len(loaders)} processes do the work of one",
                step=1,
            )


def _num_same(loaders: list[ObservedLoader]) -> int:
    """Return how many of the first batches are the same on all ranks; 0 unless all that are known are."""
    pages = [loader.samples[0].digests if loader.samples else [] for loader in loaders]
    num = min(map(len, pages))
    samples = {digest for batch in pages[0][:num] for digest in batch}
    if num < _LEAST_BATCHES or len(samples) < _LEAST_SAMPLES:
        return 0
    is_same = all(sorted(page[place]) == sorted(pages[0][place]) for page in pages for place in range(num))
    return num if is_same else 0
