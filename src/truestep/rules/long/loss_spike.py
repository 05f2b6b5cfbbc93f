"""The loss jumps far above all values before it.

## What it finds
A loss that is six times as far above the median of the 128 losses before it as the highest of them. The
spread is the run's own, so a noisy loss does not count. Of several spikes the first is shown.

## Why it matters
One bad batch, or a learning rate that is too high for a moment, can undo hours of training, and an average
that is printed now and then does not show it.

## How to fix
Look at the batch of that step. Damaged samples, a wrong label and an empty mask are the usual causes. Clip
gradients if the samples are right. `truestep replay --step N train.py` shows the step with its gradients and
the first extreme value.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.course import CoursePoint, LossSpiked
from truestep.watch.evidence.facts.optimizing import LossLevel

RULE = Meta(
    code="LONG01",
    severity="info",
    needs=(LossLevel, CoursePoint),
    caused_by=("LONG02",),
    fix="Look at that step: truestep replay --step N train.py shows its batch and the first extreme value.",
    is_preview=True,
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find the first spike."""
    spikes = sorted(evidence.of(LossSpiked), key=lambda moment: moment.facts.at_step)
    if not spikes:
        return
    facts = spikes[0].facts
    more = f"; {len(spikes) - 1} more spikes after it" if len(spikes) > 1 else ""
    yield Finding.at(
        spikes[0],
        f"the loss jumps to {facts.loss:.4g}",
        step=facts.at_step + 1,
        evidence=f"the {facts.num_before} losses before it have a median of {facts.usual:.4g} and a maximum "
        f"of {facts.highest:.4g}{more}",
    )
