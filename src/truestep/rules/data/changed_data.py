"""Training changes the stored data: each epoch sees other values.

## What it finds
A dataset whose `__getitem__` works in place on the tensor or array that it stores: the rule reads one
sample twice, in a copy of the process, and looks at what is stored.

## Why it matters
Indexing gives a view, not a copy. Noise, masks and normalization pile up from epoch to epoch: after ten
epochs a sample has been normalized ten times. The loss still falls at first, so it looks like poor
training.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.loaders import find_loaders
from truestep.watch.evidence.facts.loading import StoredChanged
from truestep.watch.evidence.facts.optimizing import OptimizerStep

RULE = Meta(
    code="DATA11",
    severity="error",
    needs=(OptimizerStep, StoredChanged),
    fix="Work on a copy: clone the sample first, or write x = (x - mean) / std instead of x -= mean.",
)
_LEAST_SHARE, _LEAST_VALUES = 0.5, 4


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find data that are not what they were."""
    places = set()
    for moment in evidence.of(StoredChanged):
        facts = moment.facts
        least = max(_LEAST_VALUES, _LEAST_SHARE * facts.num_values)
        if min(facts.num_first, facts.num_second) < least:
            continue  # a cache is filled once, and a counter is one number
        if not _is_read_again(evidence, facts.loader):
            continue
        place = facts.place or moment
        if (place.file, place.line) in places:
            continue
        places.add((place.file, place.line))
        before, once, twice = facts.values
        yield Finding.at(
            place,
            "reading a sample changes the stored data",
            step=None,
            evidence=f"reading sample 0 changed {facts.num_first} stored values, reading it again "
            f"{facts.num_second}, expected 0; one went from {before:.3g} to {once:.3g} to {twice:.3g}",
        )


def _is_read_again(evidence: Evidence, loader: int) -> bool:
    """Whether the dataset was gone through more than once, by this loader or by another."""
    loaders = find_loaders(evidence)
    own = next((item for item in loaders if item.number == loader), None)
    if own is None:
        return False
    same = [item for item in loaders if item.facts.dataset == own.facts.dataset]
    return sum(len(item.epochs) for item in same) > 1
