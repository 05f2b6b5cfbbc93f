"""The output depends on a sample's place in the batch.

## What it finds
A model in eval mode that gives a sample another output when the sample stands at another place of the same
batch. The rule passes one batch through a copy of the model, moves every sample up by one place, and passes
it again.

## Why it matters
The order of a batch is chance. A model whose output depends on it learns noise, and predicts something else
for the same sample in another batch. The usual cause is a positional encoding that is indexed by the batch
axis instead of the axis of positions: all positions of a sample get the same code, and the order is lost.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.passes import PlaceInBatch

RULE = Meta(
    code="PROBE09",
    severity="error",
    needs=(PlaceInBatch,),
    is_lasting=True,
    fix="Index by the axis of positions, not by the axis of samples: x.size(1) if the batch comes first.",
)
_MIN_MOVED = 1e-2


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find models that know where in the batch a sample stands."""
    for moment in evidence.of(PlaceInBatch):
        facts = moment.facts
        if not facts.num_changed or facts.most < _MIN_MOVED:
            continue
        yield Finding.at(
            facts.place or moment,
            "the output depends on a sample's place in the batch",
            step=moment.step,
            evidence=f"in eval mode, {facts.num_samples} samples were passed in another order: the outputs "
            f"of {facts.num_changed} of them changed, by up to {facts.most:.2g} standard deviations; "
            "expected no change",
        )
