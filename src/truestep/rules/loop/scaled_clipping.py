"""Gradients are clipped while they are still multiplied by the loss scale.

## What it finds
Clipping between the backward pass of a scaled loss and `scaler.unscale_(optimizer)`. If you never call
`unscale_`, `scaler.step` does it.

## Why it matters
The limit is compared with gradients that are, for example, 65536 times too large. Nearly all of them are
clipped, and after unscaling the step is that much smaller than you intended.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.optimizing import ClippingCalled, GradientsUnscaled, ScaledClipped

RULE = Meta(
    code="LOOP06",
    severity="error",
    needs=(ClippingCalled, GradientsUnscaled),
    is_lasting=True,
    fix="Call scaler.unscale_(optimizer) between backward and clipping.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find clipping before unscaling."""
    for moment in evidence.of(ScaledClipped):
        clipped_at, scale = moment.facts.clipped_at, moment.facts.scale
        yield Finding.at(
            clipped_at,
            "gradients are clipped before they are unscaled",
            step=moment.step + 1,
            evidence=f"the loss scale was {scale:g}, and the gradients were unscaled only afterwards, at "
            f"line {moment.line}",
            cost=f"the limit is {scale:g} times too strict",
        )
