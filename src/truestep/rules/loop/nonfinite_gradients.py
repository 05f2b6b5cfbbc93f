"""A gradient that is not finite is applied to the weights.

## What it finds
A step whose gradients contain an infinity or NaN. A step that a gradient scaler skips because of them is
correct and is not reported. If the loss has risen from step to step, a million times and more before that,
the reported line is where the optimizer is created; else where the first such value comes from.

## Why it matters
One such value makes the weight, and soon all weights, useless. Adam keeps it in its averages forever. The
loss may still look fine at that step: a branch that `where` does not select can produce NaN in the backward
pass alone.

## How to fix
Keep the operation's input away from points where its derivative is infinite (square root, logarithm and norm
at zero, division by zero). Select or clamp its input, not its output. Where the loss rises from step to step,
lower the learning rate.
"""

from collections.abc import Iterator
from itertools import pairwise
from math import isfinite

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.roster import few, where_made
from truestep.watch import Moment, Operation
from truestep.watch.evidence.facts.optimizing import GradientsNonfinite, LossLevel, OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="LOOP11",
    severity="error",
    needs=(BackwardPass, OptimizerStep),
    caused_by=("DATA07",),
    is_lasting=True,
    fix="Find the operation whose derivative is not finite, and clamp or mask its input.",
)
_MIN_RISES, _FAR = 3, 1e6
"""How often the loss has risen, one step after the other, and how many times higher it is then."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find the first step of each line that applies such a gradient; where it came from, if that is known."""
    for moment in evidence.of(GradientsNonfinite):
        rise = _rise_before(evidence, moment)
        if len(rise) > _MIN_RISES and rise[-1] > _FAR * rise[0]:
            yield _diverged(evidence, moment, rise)
            return
        if evidence.origin is not None:
            yield _at_origin(moment, evidence.origin)
            return  # what follows is the same value
        facts = moment.facts
        names = few(facts.names, num=facts.num_parameters)
        before = (
            "the weights were not finite either" if facts.has_nonfinite_weights else "the weights were finite"
        )
        loss = "finite" if facts.is_loss_finite else "not finite"
        yield Finding.at(
            moment,
            "a gradient that is not finite is applied to the weights",
            evidence=f"{facts.num_parameters} parameters: {names}; {before}, and the loss of the backward "
            f"pass at line {facts.backward_at.line} was {loss}",
        )


def _rise_before(evidence: Evidence, moment: Moment[GradientsNonfinite]) -> list[float]:
    """Return the losses of the steps before, as long as each is higher than the one before it."""
    place = moment.facts.backward_at
    losses: list[float] = []
    for level in evidence.of(LossLevel):
        if level.step <= moment.step and (level.file, level.line) == (place.file, place.line):
            loss = level.facts.loss
            losses += [loss] if isinstance(loss, float) and isfinite(loss) else []
    start = max((at for at, (one, other) in enumerate(pairwise(losses), 1) if other <= one), default=0)
    return [loss for loss in losses[start:] if loss > 0]


def _diverged(evidence: Evidence, moment: Moment[GradientsNonfinite], rise: list[float]) -> Finding:
    return Finding.at(
        where_made(evidence, moment.facts.optimizer) or moment,
        "training diverges: the loss rises at each step until a gradient is not finite",
        evidence=f"the loss rises from {rise[0]:.3g} to {rise[-1]:.3g} in {len(rise)} steps; then the step "
        f"at line {moment.line} applies a gradient that is not finite",
        fix="Lower the learning rate.",
        step=moment.step + 1,
    )


def _at_origin(moment: Moment[GradientsNonfinite], origin: Operation) -> Finding:
    is_backward = origin.phase == "backward" and origin.forward_line is not None
    name = (origin.forward_name if is_backward else origin.name) or origin.name
    module = (origin.forward_module if is_backward else origin.module) or ""
    short = name.removeprefix("aten.").partition(".")[0]
    worst = "NaN" if any(out.worst == "nan" for out in origin.outs) else "an infinity"
    where = "its derivative" if is_backward else "it"
    inside = f" in module {module}" if module else ""
    names = few(moment.facts.names, num=moment.facts.num_parameters)
    return Finding(
        message=f"{where if is_backward else short} produces {worst}"
        + (f": the backward pass of {short}" if is_backward else "")
        + ", and the step applies it to the weights",
        file=origin.forward_file if is_backward else origin.file,
        line=origin.forward_line if is_backward else origin.line,
        step=origin.step + 1,
        evidence=f"replayed: {short}{inside} is the first operation in this step to produce it; the "
        f"step at line {moment.line} applied it to {moment.facts.num_parameters} parameters: {names}",
    )
