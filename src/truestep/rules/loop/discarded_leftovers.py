"""The last micro-batches of an epoch are discarded.

## What it finds
Accumulation over several backward passes per step, and a `zero_grad` that clears the gradients of fewer
passes than that: those left over at the end of the epoch. Gradients that are carried into the next epoch's
first step are not reported.

## Why it matters
The samples at the end of every epoch are computed and never learned from. Without shuffling they are always
the same ones.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.loop._passes import find_passes, used_places, usual_number
from truestep.watch.evidence.facts.optimizing import BackwardExamined, GradientsApplied, GradientsDropped
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="LOOP04",
    severity="error",
    is_observed=lambda evidence: any(len(one.facts.passes) > 1 for one in evidence.of(GradientsApplied)),
    needs=(BackwardPass, GradientsApplied, BackwardExamined),
    fix="Run a step on the micro-batches left at the end of the epoch before you zero their gradients.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find gradients of a part of an accumulation that are zeroed."""
    used = {*used_places(evidence, find_passes(evidence))}
    for moment in evidence.of(GradientsDropped):
        facts = moment.facts
        file, line, _ = facts.backward_at
        usual, num = usual_number(evidence, facts.optimizer), len(facts.passes)
        if facts.has_moved or not facts.is_finite or facts.is_by_hand or not 0 < num < usual:
            continue
        if moment.step and (file, line) in used:
            yield Finding.at(
                moment,
                "micro-batches left over at the end of an epoch are discarded",
                evidence=f"steps use {usual} backward passes each; after step {moment.step} the gradients of "
                f"{num} more (line {line}) were zeroed at this line without a step",
            )
