"""Updates are out of proportion to the weights.

## What it finds
Steps that change weights by more than a fifth of their size, or by less than a millionth, in most matrices
and at most of the steps that were checked. A warning if a step was as large as the weights and the loss
never falls below its first value, or steps are larger than a quarter of the weights as a rule, if one is
several times as large as the weights, and if the first step alone is twice as large as all matrices (as large
if the loss never falls, 100 times as large if there is one). The reported line is where the optimizer is
created.

## Why it matters
About a thousandth is common. With much more, each step undoes what earlier ones learned. With much less,
training takes forever. The ratio is a better guide to the learning rate than the loss.

## How to fix
Lower or raise the learning rate by the missing factor, or warm it up.
"""

from bisect import bisect
from collections.abc import Iterator
from math import inf, isfinite
from statistics import median

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.roster import where_made
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import LossLevel, UpdateMeasured

RULE = Meta(
    code="PROBE07",
    severity="info",
    needs=(UpdateMeasured,),
    caused_by=("DATA07",),
    fix="Change the learning rate so that a step changes weights by about a thousandth of their size.",
    is_quiet=True,
)
_HIGH, _LOW = 0.2, 1e-6
_MIN_STEPS, _MIN_HUGE, _MIN_LOSSES = 4, 2, 3
_WHOLE, _MANY, _HUGE, _QUARTER, _ERASED, _ERASED_ALONE = 1.0, 3.5, 10.0, 0.25, 2.0, 100.0
"""A step that changes weights by their whole size keeps nothing of what they were."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find optimizers whose steps are too large or too small for the weights."""
    found: dict[int, list[tuple[Moment[UpdateMeasured], float]]] = {}
    for moment in evidence.of(UpdateMeasured):
        shares = [
            row.update / row.weight if isfinite(row.update / row.weight) else inf
            for row in moment.facts.matrices
            if row.weight > 0 and (row.gradient > 0 or row.update > 0)
        ]
        if shares:
            found.setdefault(moment.facts.optimizer, []).append((moment, median(shares)))
    for optimizer, items in found.items():
        moments = [moment for moment, _ in items]
        is_learning = _is_learning(evidence, moments)
        usual = median(share for _, share in items)
        most = max(share for _, share in items)
        is_excessive = most > _WHOLE and (usual > _QUARTER or not is_learning or most > _MANY)
        is_huge = most > _HUGE and not is_learning and len(items) >= _MIN_HUGE
        is_enough = len(items) >= _MIN_STEPS
        if is_huge or (is_enough and (usual > _HIGH or 0 < most < _LOW)):
            word = "large" if is_huge or usual > _HIGH else "small"
            yield Finding.at(
                where_made(evidence, optimizer) or items[0][0],
                f"updates are very {word} compared to the weights they change",
                evidence=f"a step changes a matrix by {usual:.1e} of its size, median of {len(items)} steps; "
                f"by {most:.1e} at most{_largest(moments)}",
                severity="warning" if is_excessive else None,
                step=items[0][0].step + 1,
            )
        elif erased := _erased_by(items[0][0], is_learning=is_learning):
            yield Finding.at(
                where_made(evidence, optimizer) or items[0][0],
                "the first step is larger than the weights it changes",
                evidence=f"it changes each of {len(items[0][0].facts.matrices)} matrices by {erased:.2g} "
                f"times its size or more, so that nothing is left of the initial weights"
                f"{_largest(moments[:1])}",
                severity="warning",
                count=1,
                step=items[0][0].step + 1,
            )


def _largest(moments: list[Moment[UpdateMeasured]]) -> str:
    """Return which matrix is changed most beside its size."""
    rows = [row for moment in moments for row in moment.facts.matrices if row.weight > 0]
    row = max(rows, key=lambda row: row.update / row.weight)
    return f"; {row.name} changes most, by {row.update:.2g} where its weights are {row.weight:.2g}"


def _erased_by(moment: Moment[UpdateMeasured], *, is_learning: bool) -> float | None:
    """Return the least share of a matrix that a first step changes, if it is more than all of the matrix."""
    shares = [row.update / row.weight for row in moment.facts.matrices if row.weight > 0]
    if not shares or len(shares) < len(moment.facts.matrices):
        return None
    least = _ERASED_ALONE if len(shares) == 1 else _ERASED if is_learning else _WHOLE
    return min(shares) if min(shares) > least else None


def _is_learning(evidence: Evidence, steps: list[Moment[UpdateMeasured]]) -> bool:
    """Whether a loss has fallen that steps were made for; each line that calls backward has its own."""
    levels = evidence.of(LossLevel)
    by_line: dict[tuple[str | None, int | None], list[float]] = {}
    for moment in levels:
        loss = moment.facts.loss
        value = loss if isinstance(loss, float) and isfinite(loss) else inf
        by_line.setdefault((moment.file, moment.line), []).append(value)
    times = [moment.at_s for moment in levels]
    last = [bisect(times, step.at_s) - 1 for step in steps]
    lines = {(levels[place].file, levels[place].line) for place in last if place >= 0} or by_line.keys()
    own = [by_line[line] for line in lines]
    if max(map(len, own), default=0) < _MIN_LOSSES:
        return True
    return any(min(losses[1:], default=inf) < losses[0] for losses in own)
