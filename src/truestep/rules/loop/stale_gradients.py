"""Gradients are not zeroed between steps.

## What it finds
A backward pass that starts while the gradients of the previous step are still there, and a step that applies
the sum of both. Accumulation over several backward passes is fine: there is no step between them.

## Why it matters
`backward` adds to `.grad` and never replaces it. Each step then follows the sum of all gradients since the
start: old directions never disappear, and the effective learning rate grows with every step. The loss may
still fall, only more slowly and less stably than it would.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Edit, Evidence, Finding, Meta, Source
from truestep.rules.kit.edits import call_at, insert_after, insert_before, statement_of
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import GradientsApplied
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.kinds import Place

RULE = Meta(
    code="LOOP01",
    severity="error",
    needs=(BackwardPass, GradientsApplied),
    is_lasting=True,
    fix="Call optimizer.zero_grad() before this backward pass, once for every optimizer.step().",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find steps that apply gradients for the second time."""
    steps: dict[Place, list[Moment[GradientsApplied]]] = {}
    for moment in evidence.of(GradientsApplied):
        if moment.facts.stale_at is not None:
            steps.setdefault(moment.facts.stale_at, []).append(moment)
    for at, moments in steps.items():
        lines = sorted({moment.line for moment in moments if moment.line is not None})
        details = {"step_lines": lines, "accumulates": _accumulates(evidence, at)}
        for moment in moments:
            yield Finding.at(
                at,
                "gradients are not zeroed between steps: zero_grad() is missing",
                step=moment.step + 1,
                details=details,
                evidence=f"this backward pass started with the gradients that step {moment.step} applied, "
                f"not zeroed; step {moment.step + 1} at line {moment.line} applied the sum",
            )


def make_edits(source: Source, finding: Finding) -> list[Edit]:
    """Zero the gradients of each optimizer that steps; nothing if one of them is not found."""
    found = [_zero(source, finding, line) for line in finding.details["step_lines"]]
    return [edit for edits in found for edit in edits] if all(found) else []


def _zero(source: Source, finding: Finding, step_line: int) -> list[Edit]:
    """Zero the gradients before the backward pass; after the step, if several passes belong to one.

    After the step, too, where the optimizer has no name yet before the pass.
    """
    call = call_at(source, step_line, name="step")
    if call is None or not isinstance(call.func, ast.Attribute):
        return []
    owner = call.args[0] if call.args else call.func.value  # a gradient scaler is given the optimizer
    if not isinstance(owner, ast.Name | ast.Attribute):
        return []
    text = f"{ast.unparse(owner)}.zero_grad()"
    backward = call_at(source, finding.line, name="backward")
    after = insert_after(source, statement_of(source, call), text)
    if finding.details["accumulates"] or backward is None:
        return after
    return insert_before(source, statement_of(source, backward), text) or after


def _accumulates(evidence: Evidence, at: Place) -> bool:
    """Whether the line makes several backward passes between two steps."""
    passes = evidence.of(BackwardPass)
    steps = [item.step for item in passes if (item.file, item.line) == (at.file, at.line)]
    return len(steps) > len(set(steps))
