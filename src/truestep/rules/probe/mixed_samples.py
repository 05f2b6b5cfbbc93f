"""Samples of one batch influence each other.

## What it finds
A model in eval mode whose output for one sample changes when another sample of the batch is replaced. The
rule passes one batch through a copy of the model twice, with one sample replaced the second time.

## Why it matters
A model should treat each sample independently. If attention or a recurrence runs over the batch axis
(`batch_first` is missing, or `view` instead of `transpose`), predictions depend on what else is in the batch.
Training works, only worse, and no shape is wrong.

## How to fix
Check which axis the reported line works over. Pass `batch_first=True`, transpose before and after it, or
correct the `view`.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.passes import SamplesMixed

RULE = Meta(
    code="PROBE01",
    severity="error",
    needs=(SamplesMixed,),
    caused_by=("LOSS04",),
    is_lasting=True,
    fix="Check which axis this line works over: batch_first=True is missing, or a transpose.",
)
_MIN_MOVED = 1e-3
_STATISTICS = ("mean", "sum", "std", "var", "var_mean", "std_mean", "linalg_vector_norm")
"""Statistics of a batch are taken on purpose, as a critic does that looks for variety; a classifier's class
of one sample, once it is trained, cannot hang on those of others."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find models in which one sample changes the output of others."""
    for moment in evidence.of(SamplesMixed):
        facts = moment.facts
        if not facts.num_changed or facts.most < _MIN_MOVED:
            continue
        if facts.operation in _STATISTICS and not facts.is_classifier:
            continue
        yield Finding.at(
            facts.place or moment,
            "samples of one batch influence each other: this line works over the batch axis",
            step=moment.step,
            evidence=f"in eval mode, replacing 1 of {facts.num_samples} samples changed the outputs of "
            f"{facts.num_changed} others, by up to {facts.most:.2g} standard deviations",
        )
