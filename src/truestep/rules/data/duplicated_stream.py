"""Every worker yields the whole iterable dataset.

## What it finds
A loader with several workers over an `IterableDataset` that yields each sample once per worker.

## Why it matters
Each worker has a copy of the dataset and runs its `__iter__`. If that method does not check which worker it
runs in, every sample appears once per worker. An epoch is that much longer than it should be, batches repeat
each other, and the number of workers changes the training.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.loaders import ObservedLoader, find_loaders
from truestep.watch.evidence.facts.loading import LoaderUsed, SamplesSeen

RULE = Meta(
    code="DATA02",
    severity="error",
    is_observed=lambda evidence: any(_is_asked(loader) for loader in find_loaders(evidence)),
    needs=(LoaderUsed, SamplesSeen),
    fix="In __iter__, take every n-th sample or shard: islice(items, worker.id, None, worker.num_workers).",
)
_LEAST_SAMPLES = 16
_MOST_OWN, _LEAST_SHARED = 0.1, 0.5
_LEAST_PART, _LEAST_DISTINCT = 0.05, 4
_LEAST_KINDS = 8


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find samples that come from more than one worker."""
    for loader in find_loaders(evidence):
        pages = [page for page in loader.samples if page.epoch == 0 and page.digests]
        if not _is_asked(loader) or not pages:
            continue
        workers = loader.facts.num_workers
        # Batches come from the workers in turn.
        given = [list(chain(*pages[0].digests[turn::workers])) for turn in range(workers)]
        shared, repeated = _shares(given)
        place = loader.made or loader.epochs[0]
        is_continuous = pages[0].num_distinct >= _LEAST_DISTINCT  # then no two samples are equal by chance
        is_whole = shared >= _LEAST_SHARED and repeated <= _MOST_OWN
        is_part = is_continuous and shared >= _LEAST_PART and repeated <= shared / 10
        is_part = is_part and not _is_thought_of(evidence, loader)
        if min(map(len, given)) >= _LEAST_SAMPLES and (is_whole or is_part or _are_alike(given)):
            yield Finding.at(
                place,
                "every worker yields the whole dataset: each sample appears once per worker",
                evidence=f"in the first epoch, {shared:.0%} of a worker's samples also came from another "
                f"of the {workers} workers, {repeated:.0%} twice from the same one",
                cost=f"each epoch is {workers} times as long",
            )


def _is_thought_of(evidence: Evidence, loader: ObservedLoader) -> bool:
    """Whether workers are distinguished: each may go through all of an endless stream, in another order."""
    texts = (source.text for source in evidence.sources)
    return loader.facts.has_init or any("worker_info" in text for text in texts)


def _is_asked(loader: ObservedLoader) -> bool:
    return loader.facts.is_iterable and loader.facts.num_workers > 1


def _are_alike(given: list[list[int]]) -> bool:
    """Whether all workers give the same samples in the same order; some may come often in the data."""
    num = min(map(len, given))
    return len({tuple(digests[:num]) for digests in given}) == 1 and len(set(given[0][:num])) >= _LEAST_KINDS


def _shares(given: list[list[int]]) -> tuple[float, float]:
    """Return which part of all samples another worker gave too, and which part the same one gave before."""
    counts = [Counter(digests) for digests in given]
    num = sum(map(len, given))
    shared = sum(
        1
        for turn, digests in enumerate(given)
        for digest in digests
        if any(digest in other for place, other in enumerate(counts) if place != turn)
    )
    repeated = sum(len(digests) - len(count) for digests, count in zip(given, counts, strict=True))
    return (shared / num, repeated / num) if num else (0.0, 0.0)
