"""What a copy of the model can learn from its first batches. Only with `check --deep`.

## What it finds
With `--deep`, `check` trains a copy of the model, in a copy of the process, on the first batches of the
script: on one batch alone, and on several with true labels and with permuted ones. It reports all numbers
as a remark. A model that cannot learn even one batch is a warning.

## Why it matters
A network with any capacity learns one batch by heart. If it cannot, gradients do not reach the weights, the
output is cut off, or input and target do not belong together. If true labels are learned no better than
permuted ones, the labels have nothing to do with the inputs, or a few steps do not show it.
"""

from collections.abc import Iterator
from math import log

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.passes import LearningTested

RULE = Meta(
    code="PROBE11",
    severity="info",
    needs=(LearningTested,),
    fix="Look at what lies between the last layer and the loss, and print one input with its label.",
)
_NOTHING = "None needed: this is a measurement."
_LEARNED, _UNLEARNED, _LEAST_LOSS, _BETTER = 0.5, 0.9, 0.1, 0.95


def check(evidence: Evidence) -> Iterator[Finding]:
    """Report what the copy has learned."""
    for moment in evidence.of(LearningTested):
        facts = moment.facts
        if facts.reason:
            yield Finding.at(
                moment, "not tested what the model can learn", evidence=facts.reason, fix=_NOTHING
            )
            continue
        first, last = facts.single[0], facts.single[-1]
        is_stuck = first > _LEAST_LOSS and not last <= _UNLEARNED * first
        message = (
            "a copy of the model cannot learn one batch"
            if is_stuck
            else "a copy of the model learns one batch"
        )
        if not is_stuck and last > _LEARNED * first and first > _LEAST_LOSS:
            message = "a copy of the model learns one batch only in part"
        yield Finding.at(
            moment,
            message,
            severity="warning" if is_stuck else "info",
            evidence="; ".join(_answers(facts)),
            fix=None if is_stuck else _NOTHING,
            cost=f"{facts.took_s:.1f} s in a copy of the process",
        )


def _answers(facts: LearningTested) -> Iterator[str]:
    """Yield what was tried, and what came out."""
    yield f"one batch, up to {facts.num_steps} steps of Adam: {facts.loss} {_curve(facts.single)}"
    true, permuted = facts.true[-1], facts.permuted[-1]
    says = "true labels are learned better" if true < _BETTER * permuted else "inconclusive"
    yield (
        f"held-out batches after training on {facts.num_batches - 2} others: {true:.3g} with true labels, "
        f"{permuted:.3g} with permuted ones, {says}"
    )
    if facts.num_classes > 1:
        guess = log(facts.num_classes)
        start = f"at the start {facts.true[0]:.3g}"
        yield f"{start}, a uniform guess over {facts.num_classes} classes {guess:.3g}"


def _curve(values: list[float]) -> str:
    return " → ".join(f"{value:.3g}" for value in values)
