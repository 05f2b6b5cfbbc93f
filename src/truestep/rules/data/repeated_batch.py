"""Every step trains on the same batch of a loader that has more.

## What it finds
A training loader that is started over for every step, of which only the first batch is used, and whose
first batch is always the same: `next(iter(loader))` in the loop, without shuffling.

## Why it matters
The model is trained on one batch. The loss falls, because that batch is learned by heart; all other samples
are never used.

## How to fix
Loop over the loader, or keep one iterator: `batches = iter(loader)` before the loop and `next(batches)` in
it.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.loaders import ObservedLoader, find_loaders
from truestep.watch.evidence.facts.loading import LoaderUsed
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="DATA08",
    severity="error",
    needs=(LoaderUsed, BackwardPass),
    fix="Loop over the loader, or make the iterator once before the loop: batches = iter(loader).",
    is_preview=True,
)
_LEAST_EPOCHS = 5


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find loaders of which only the first batch is ever used."""
    lengths = {moment.facts.loader: moment.facts.length for moment in evidence.of(LoaderUsed)}
    for loader in find_loaders(evidence):
        length, num_epochs = lengths.get(loader.number), len(loader.epochs)
        if length is None or length < 2 or num_epochs < _LEAST_EPOCHS or loader.facts.is_iterable:
            continue
        is_first_only = len(loader.batches) == num_epochs and len(loader.trained_epochs) == num_epochs
        if is_first_only and _has_one_batch(loader):
            samples = loader.samples[0]
            yield Finding.at(
                loader.epochs[1],
                "every step trains on the same batch: the loader starts over each time",
                evidence=f"{num_epochs} steps started the loader over and took 1 of its {length} batches; "
                f"the {len(samples.digests[0])} samples were the same each time, "
                f"expected {length} different batches",
                count=num_epochs,
            )


def _has_one_batch(loader: ObservedLoader) -> bool:
    """Whether the first epochs, of which digests are known, gave one batch with the same samples."""
    pages = [page.digests for page in loader.samples]
    return len(pages) > 1 and bool(pages[0]) and all(page == pages[0] for page in pages)
