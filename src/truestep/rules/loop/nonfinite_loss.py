"""The loss is infinite or NaN, and its gradients are finite.

## What it finds
A backward pass of a loss that is not finite, whose gradients are all finite and are applied by a step. Losses
that a gradient scaler has multiplied are not reported.

## Why it matters
The weights stay finite, so training continues and nothing fails. But the printed loss is useless, averages
of it are NaN, the best checkpoint is never replaced, and the term that is not finite teaches nothing.

## How to fix
Find the term: a logarithm of zero, a division by an empty sum, a mean over no elements, a target that a mask
excludes. Clamp its input, or leave such samples out.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.optimizing import LossNonfinite, OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="LOOP18",
    severity="error",
    needs=(BackwardPass, OptimizerStep),
    caused_by=("LOOP11", "DATA07"),
    is_lasting=True,
    fix="Find the term of the loss that is not finite, and clamp its input or leave the sample out.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find the backward passes of such losses."""
    for moment in evidence.of(LossNonfinite):
        place = moment.facts.backward_at
        yield Finding(
            message="the loss is not finite, although its gradients are",
            file=place.file or None,
            line=place.line or None,
            step=moment.step + 1,
            evidence=f"the step at line {moment.line} applies finite gradients of a loss that is not",
        )
