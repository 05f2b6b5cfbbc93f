"""Labels are shifted twice, so the model learns to skip a token.

## What it finds
A cross entropy whose targets are the model's input tokens shifted by two positions instead of one. The data
were shifted when they were prepared, and the model (as in transformers) or the loss shifts them again.

## Why it matters
The loss falls as it should, but each generated token belongs one position later: the text comes out with
every other token missing.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.loss._labels import labels_line
from truestep.watch.evidence.facts.passes import ClassesScored

RULE = Meta(
    code="LOSS08",
    severity="warning",
    is_observed=lambda evidence: any(moment.facts.shifts for moment in evidence.of(ClassesScored)),
    needs=(ClassesScored,),
    fix="Shift the labels only once; if the model shifts them, pass labels equal to the input.",
)
_MIN_COMPARED = 12
_MAX_RIGHT = 0.9


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find losses over the token after the next."""
    moments = [moment for moment in evidence.of(ClassesScored) if moment.facts.shifts]
    if any(moment.facts.shifts[1].share == 1.0 for moment in moments):
        return  # another head may look further ahead on purpose
    for moment in moments:
        (unshifted, _), (once, _), (twice, num) = moment.facts.shifts
        if twice == 1.0 and num >= _MIN_COMPARED and max(unshifted, once) < _MAX_RIGHT:
            yield Finding.at(
                moment,
                "the labels are shifted twice: the loss scores the token after the next",
                line=labels_line(evidence, moment),
                evidence=f"all {num} comparable targets are the input tokens shifted by two; "
                f"{once:.0%} match a shift by one",
            )
