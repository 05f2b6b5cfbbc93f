"""A model that predicts the next token can see it.

## What it finds
A model that is trained on its own input shifted by one, and whose outputs at early positions change when
later tokens are replaced. The rule passes one batch through a copy of the model in eval mode twice.

## Why it matters
The loss falls quickly, because the answer is in the input. When you use the model, the next token does not
exist yet, and its predictions are worthless. Perplexity in training and validation does not show it.

## How to fix
Mask the attention so that each position sees itself and earlier ones (`is_causal=True`, or a mask of
`torch.triu(..., diagonal=1)`), pad convolutions on the left only, and do not use bidirectional recurrence.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.passes import FutureSeen

RULE = Meta(
    code="PROBE02",
    severity="warning",
    needs=(FutureSeen,),
    is_lasting=True,
    fix="Mask later positions at this line: a causal mask with diagonal=1, or is_causal=True.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find models that are trained to predict the next token and look ahead."""
    for moment in evidence.of(FutureSeen):
        facts = moment.facts
        if not facts.num_changed:
            continue
        yield Finding.at(
            facts.place or moment,
            "later tokens influence earlier outputs of a model that predicts the next token",
            step=moment.step,
            evidence=f"replacing the tokens from position {facts.cut} of {facts.length} on changed "
            f"{facts.num_changed} of the {facts.cut} outputs before them, by up to {facts.most:.2g} "
            "standard deviations; the targets are the inputs shifted by one",
        )
