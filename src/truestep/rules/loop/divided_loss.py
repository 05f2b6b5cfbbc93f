"""A mean loss is divided once more, but nothing is accumulated.

## What it finds
A loss that is a mean over the batch and is divided by a whole number of 4 or more before `backward()`, while
every optimizer step applies a single backward pass. Losses of several terms are not reported.

## Why it matters
The division is right for accumulation, where the gradients of several micro-batches are summed. Without it
gradients are too small by that number, and so are the steps, unless the optimizer divides by the gradient's
size, as Adam does. Clipping never sets in, and weight decay that is added to the gradient becomes too large.

## How to fix
Pass the mean loss itself to `backward()`. If you meant to accumulate, step once per that number of batches.
"""

from collections.abc import Iterator
from math import prod

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.roster import coupled_decays, find_optimizer
from truestep.rules.loop._passes import Pass, find_passes, is_adaptive
from truestep.watch.evidence.facts.optimizing import (
    BackwardExamined,
    GradientsApplied,
    GradientsClipped,
)
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="LOOP21",
    severity="warning",
    needs=(BackwardPass, GradientsApplied, BackwardExamined),
    fix="Call backward() on the mean loss, without dividing it again.",
)
_MIN_STEPS, _MIN_DIVISOR = 2, 4
_TOLERANCE = 1e-4


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find single passes of a mean loss that is divided."""
    passes = find_passes(evidence)
    by_optimizer: dict[int, list[GradientsApplied]] = {}
    for moment in evidence.of(GradientsApplied):
        by_optimizer.setdefault(moment.facts.optimizer, []).append(moment.facts)
    for optimizer, steps in by_optimizer.items():
        if any(len(facts.passes) != 1 or facts.factor is not None for facts in steps):
            continue
        used = [passes[number] for facts in steps for number in facts.passes if number in passes]
        measured = [item for item in used if item.graph is not None]
        divisors = {_divisor(item) for item in measured}
        divisor = divisors.pop() if len(divisors) == 1 else None
        if divisor is None or len(measured) < _MIN_STEPS:
            continue
        yield Finding.at(
            measured[0].moment,
            f"the mean loss is divided by {divisor}, but each step applies only one backward pass",
            evidence=f"the loss of each of the {len(measured)} passes that were checked is a mean times "
            f"1/{divisor}; all {len(steps)} steps applied one pass each",
            severity=None if _is_harmful(evidence, optimizer) else "info",
        )


def _divisor(item: Pass) -> int | None:
    """Return the whole number by which a single mean is divided; None if there is none."""
    graph = item.graph
    if graph is None or len(graph.terms) != 1 or graph.terms[0].reduction != "mean":
        return None
    factor = abs(prod((*graph.factors, *graph.terms[0].factors)))
    number = round(1 / factor) if factor > 0 else 0
    return number if number >= _MIN_DIVISOR and abs(factor * number - 1) < _TOLERANCE else None


def _is_harmful(evidence: Evidence, optimizer: int) -> bool:
    is_clipped = any(optimizer in moment.facts.optimizers for moment in evidence.of(GradientsClipped))
    found = find_optimizer(evidence, optimizer)
    is_decayed = found is not None and bool(coupled_decays(found))  # the decay is not divided
    return is_clipped or is_decayed or not is_adaptive(evidence, optimizer)
