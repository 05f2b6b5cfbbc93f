"""Gradients are clipped too late or too early: after the step, or before the backward pass.

## What it finds
`clip_grad_norm_` or `clip_grad_value_` on gradients that the step has already applied, or on no gradients at
all, while the gradients that steps apply are never clipped. Gradients that a script computes itself are not
reported.

## Why it matters
The limit has no effect: one large gradient can move the weights arbitrarily far.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.grouping import by_line
from truestep.watch.evidence.facts.optimizing import GradientsClipped, OptimizerStep

RULE = Meta(
    code="LOOP05",
    severity="error",
    needs=(GradientsClipped, OptimizerStep),
    caused_by=("LOOP12",),
    fix="Clip after the last backward pass and before optimizer.step().",
)
_MIN_TIMES = 2


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find lines that only ever clip what no step will apply."""
    lines = by_line(evidence.of(GradientsClipped))
    for moments in lines.values():
        states = {moment.facts.state for moment in moments}
        optimizers = {number for moment in moments for number in moment.facts.optimizers}
        num_steps = sum(moment.facts.optimizer in optimizers for moment in evidence.of(OptimizerStep))
        if not states <= {"applied", "none"} or len(moments) < min(_MIN_TIMES, num_steps) or not num_steps:
            continue
        if any(moment.facts.is_in_step for moment in moments) or _is_clipped_elsewhere(evidence, optimizers):
            continue
        # What comes first may be about nothing: the second says which of the two it is.
        is_after = "applied" in states
        yield Finding.at(
            moments[0],
            "gradients are clipped after the step that applies them"
            if is_after
            else "gradients are clipped before the backward pass that computes them",
            evidence=f"in all {len(moments)} checked calls "
            + ("the last step had already applied the gradients" if is_after else "there was no gradient")
            + "; none was clipped between a backward pass and its step",
        )


def _is_clipped_elsewhere(evidence: Evidence, optimizers: set[int]) -> bool:
    return any(
        moment.facts.state == "waiting" and optimizers.intersection(moment.facts.optimizers)
        for moment in evidence.of(GradientsClipped)
    )
