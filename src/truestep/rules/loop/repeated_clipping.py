"""Accumulated gradients are clipped at each micro-batch instead of once before the step.

## What it finds
A line that clips gradients, after which another backward pass adds to them, and which clips again before the
step.

## Why it matters
Clipped gradients are added to and then clipped a second time. Early micro-batches count less than late ones,
and the result is neither the clipped sum nor the sum of clipped gradients.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.optimizing import GradientsApplied, GradientsClipped

RULE = Meta(
    code="LOOP07",
    severity="error",
    is_observed=lambda evidence: any(len(one.facts.passes) > 1 for one in evidence.of(GradientsApplied)),
    needs=(GradientsClipped, GradientsApplied),
    is_lasting=True,
    fix="Clip once, right before optimizer.step().",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find clipping between the backward passes of one step."""
    clipped = evidence.of(GradientsClipped)
    for moment in evidence.of(GradientsApplied):
        for place in moment.facts.clipped_at[:1]:
            key = (place.file, place.line, moment.step)
            times = sum((item.file, item.line, item.step) == key for item in clipped)
            if times > 1:
                yield Finding.at(
                    place,
                    "gradients are clipped at each micro-batch, before the sum is complete",
                    step=moment.step + 1,
                    evidence=f"step {moment.step + 1} at line {moment.line} used "
                    f"{len(moment.facts.passes)} backward passes and clipped {times} times",
                )
