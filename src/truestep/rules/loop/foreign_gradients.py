"""Gradients that another network's loss has left behind are applied.

## What it finds
Two optimizers that take turns. The backward pass of one network's loss goes through the other network too, as
a generator's loss goes through the discriminator, and leaves gradients there. The first optimizer makes its
step. Then the other network's own backward pass adds to what is there, and its optimizer applies the sum.

## Why it matters
The discriminator is trained to help the generator, a critic to please its actor. Each undoes a part of what
it learns from its own loss. Training still runs, and converges to something worse.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.roster import names_of
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import (
    BackwardExamined,
    GradientsApplied,
    GradientsZeroed,
    OptimizerStep,
)

RULE = Meta(
    code="LOOP23",
    severity="warning",
    needs=(BackwardExamined, GradientsApplied, GradientsZeroed),
    fix="Zero these gradients right before the backward pass of the network's own loss.",
)
_LEAST_STEPS = 2


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find steps that apply what another optimizer's loss has left."""
    passes = {moment.facts.number: moment for moment in evidence.of(BackwardExamined)}
    found: dict[tuple[int, int | None, int | None], list[_Case]] = {}
    for applied in evidence.of(GradientsApplied):
        numbers = [number for number in applied.facts.passes if number in passes]
        for number in numbers[:-1]:
            left, own = passes[number], passes[numbers[-1]]
            used = _used_between(evidence, left, own, applied)
            if used is not None and left.line != own.line:
                case = (left, own, used, applied)
                found.setdefault((applied.facts.optimizer, left.line, own.line), []).append(case)
                break
    for cases in found.values():
        if len(cases) >= _LEAST_STEPS:
            yield _report(evidence, cases)


_Case = tuple[
    Moment[BackwardExamined], Moment[BackwardExamined], Moment[GradientsApplied], Moment[GradientsApplied]
]


def _used_between(  # limits: private to this module
    evidence: Evidence,
    left: Moment[BackwardExamined],
    own: Moment[BackwardExamined],
    applied: Moment[GradientsApplied],
) -> Moment[GradientsApplied] | None:
    """Return the step of another optimizer that used the first pass before the second one was made.

    The second pass must not be that optimizer's too: where both are, parts of one model are trained at
    different rates.
    """
    optimizer = applied.facts.optimizer
    others = set(left.facts.optimizers) - {optimizer}
    if not others or not 0 < _num_reached(left, optimizer) == _num_reached(own, optimizer):
        return None  # a part that both losses share may learn from both
    for moment in evidence.of(GradientsApplied):
        facts = moment.facts
        if facts.optimizer in others and left.at_s < moment.at_s < own.at_s:
            is_first = left.facts.number in facts.passes
            is_again = any(
                later.facts.optimizer == facts.optimizer and own.facts.number in later.facts.passes
                for later in evidence.of(GradientsApplied)
            )
            if is_first and not is_again:
                return moment
    return None


def _num_reached(moment: Moment[BackwardExamined], optimizer: int) -> int:
    """Return how many parameters of an optimizer a backward pass adds to."""
    facts = moment.facts
    return dict(zip(facts.optimizers, facts.num_reached, strict=True)).get(optimizer, 0)


def _report(evidence: Evidence, cases: list[_Case]) -> Finding:
    left, own, used, applied = cases[0]
    optimizer = applied.facts.optimizer
    zeroed = [
        moment
        for moment in evidence.of(GradientsZeroed)
        if moment.at_s < left.at_s and moment.facts.optimizer in (optimizer, None)
    ]
    place = zeroed[-1] if zeroed else own
    steps = [moment for moment in evidence.of(OptimizerStep) if moment.facts.optimizer == optimizer]
    line = steps[0].line if steps else applied.line
    return Finding.at(
        place,
        "gradients of another network's loss are applied: they are zeroed too early"
        if zeroed
        else "gradients of another network's loss are applied",
        step=applied.step + 1,
        count=len(cases),
        evidence=f"the backward pass at line {left.line} is for the step at line {used.line}, and leaves "
        f"gradients in all {_num_reached(own, optimizer)} parameters of the other network too"
        f"{names_of(evidence, optimizer)}; the one at line {own.line} adds to them, and the step at line "
        f"{line} applied the sum, in {len(cases)} of the steps looked at. Expected: "
        f"gradients of line {own.line} alone",
    )
