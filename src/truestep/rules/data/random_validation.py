"""Validation data are augmented at random.

## What it finds
An evaluation loader whose samples differ from one epoch to the next while their labels stay the same. If it
has one epoch only, the first samples of its dataset are read twice in a copy of the process.

## Why it matters
Random crops, flips and noise are for training. In validation they change the score although the weights are
the same: differences between epochs are partly luck, the best epoch is the luckiest, and the score is lower
than on the real data.

## How to fix
Give the validation dataset a separate transform without random parts. After `random_split`, both parts
share one dataset and therefore one transform.
"""

from collections import Counter
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.loaders import ObservedLoader, find_loaders, transform_line
from truestep.watch.evidence.facts.loading import SamplesRedrawn, SamplesSeen
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="DATA06",
    severity="warning",
    needs=(SamplesSeen, BackwardPass),
    fix="Build the validation dataset with a transform without random parts.",
)
_LEAST_SAMPLES, _MOST_KEPT = 8, 0.5


def is_observed(evidence: Evidence) -> bool:
    """Whether an evaluation loader was iterated twice, or its samples were read twice."""
    read = {moment.facts.loader for moment in evidence.of(SamplesRedrawn)}
    return any(
        loader.is_evaluation and (len(loader.samples) > 1 or loader.number in read)
        for loader in find_loaders(evidence)
    )


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find evaluation loaders that never give the same samples again."""
    loaders = find_loaders(evidence)
    if not any(loader.is_training for loader in loaders):
        return
    for loader in loaders:
        if not loader.is_evaluation or loader.facts.is_iterable or loader.name_says(evidence) == "training":
            continue
        pages = [page for page in loader.samples if page.digests]
        # Several passes over one state of the model are averages over augmentations, on purpose.
        if len(pages) > 1 and len({moment.step for moment in loader.epochs[: len(pages)]}) == len(pages):
            yield from _compare(evidence, loader, pages)
        elif len(pages) == 1:
            yield from _check_redrawn(evidence, loader)


def _check_redrawn(evidence: Evidence, loader: ObservedLoader) -> Iterator[Finding]:
    for moment in evidence.of(SamplesRedrawn):
        facts = moment.facts
        if facts.loader == loader.number and facts.num_read >= _LEAST_SAMPLES == facts.num_changed:
            yield _finding(
                evidence,
                loader,
                f"the first {facts.num_read} samples were read twice and came out different each time",
            )


def _finding(evidence: Evidence, loader: ObservedLoader, seen: str) -> Finding:
    is_own = loader.made is not None and loader.facts.is_direct
    moment = loader.made if is_own and loader.made is not None else loader.epochs[0]
    return Finding.at(
        moment,
        line=transform_line(evidence, loader) or moment.line,
        message="validation data are augmented at random: the same samples differ from epoch to epoch",
        evidence=f"{seen}, with the same labels",
    )


def _compare(evidence: Evidence, loader: ObservedLoader, pages: list[SamplesSeen]) -> Iterator[Finding]:
    first, second = pages[0], pages[1]
    is_whole = all(len(page.digests) == page.num_batches for page in (first, second))
    if not first.is_float or not (loader.facts.is_ordered or is_whole):
        return
    common = min(len(first.digests), len(second.digests))
    before, after = (
        Counter(digest for batch in page.digests[:common] for digest in batch) for page in (first, second)
    )
    kept, num = sum((before & after).values()), sum(before.values())
    are_kept = _are_in_place(first, second, common) if loader.facts.is_ordered else _are_as_many(pages)
    if num < _LEAST_SAMPLES or kept > _MOST_KEPT * num or not are_kept:
        return
    yield _finding(
        evidence,
        loader,
        f"{num - kept} of the first {num} samples of this loader were different in its second epoch",
    )


def _are_in_place(first: SamplesSeen, second: SamplesSeen, common: int) -> bool:
    """Whether the labels came again: otherwise the data are made anew, and nothing is augmented."""
    return bool(first.labels) and first.labels[:common] == second.labels[:common]


def _are_as_many(pages: list[SamplesSeen]) -> bool:
    """Whether there are as many of each label in every epoch; two kinds may be so by chance."""
    counts = []
    for page in pages:
        count: Counter[int] = Counter()
        for batch in page.labels:
            count.update(batch.counts)
        if len(page.digests) == page.num_batches:
            counts.append(count)
    is_enough = len(counts) > (1 if len(counts[0]) > 2 else 2)
    return is_enough and bool(counts[0]) and all(count == counts[0] for count in counts)
