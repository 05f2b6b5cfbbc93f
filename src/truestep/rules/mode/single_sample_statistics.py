"""BatchNorm computes its statistics from a single sample.

## What it finds
BatchNorm layers in train mode that get a batch of one sample in a training pass: a loader with
`batch_size=1`, or a last batch of one sample. Torch raises an error for inputs without spatial axes, but not
for inputs with them.

## Why it matters
Each sample is normalized on its own, so the network loses its mean and scale. Evaluation uses running
averages and brings them back: training and evaluation see different functions. Accumulating gradients over
several such passes does not help.

## How to fix
Use GroupNorm or LayerNorm, keep BatchNorm in eval mode, train on larger batches, or drop the last
incomplete batch with `drop_last=True`.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.mode._passes import read_passes
from truestep.watch.evidence.facts.passes import LayersListed, PassExamined, SingleSample

RULE = Meta(
    code="MODE06",
    severity="warning",
    needs=(LayersListed, PassExamined),
    is_lasting=True,
    fix="Use GroupNorm, larger batches or drop_last=True, or keep BatchNorm in eval mode.",
    is_preview=True,
)


def is_observed(evidence: Evidence) -> bool:
    """Whether a model with a normalisation over the batch was seen."""
    return any(moment.facts.num_norms for moment in evidence.of(LayersListed))


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find batches of one that went through BatchNorm in train mode and were trained on."""
    passes = {item.facts.number: item for item in read_passes(evidence)}
    for moment in evidence.of(SingleSample):
        item = passes.get(moment.facts.number)
        if item is not None and item.is_used:
            names = moment.facts.names
            yield Finding.at(
                moment,
                "BatchNorm in train mode gets a batch of one sample and normalizes by it alone",
                evidence=f"{len(names)} layers, the first ({names[0] or 'the model itself'}) with an input "
                f"of shape {moment.facts.shape}",
            )
