"""A second step applies the same gradients again.

## What it finds
Two steps of one optimizer with no backward pass between them, where the second applies the gradients that the
first has applied and that nothing has changed.

## Why it matters
The second step moves the weights along a gradient that was computed before the first. With plain SGD this
doubles the learning rate; momentum and Adam's averages count each batch twice.

## How to fix
Call `optimizer.step()` once after each backward pass. A framework or a scaler may make the step already.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.kit.edits import Edit, call_at, drop_statement, statement_of
from truestep.rules.kit.roster import names_of
from truestep.watch.evidence.facts.optimizing import GradientsApplied
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="LOOP17",
    severity="error",
    needs=(BackwardPass, GradientsApplied),
    is_lasting=True,
    fix="Remove one of the two calls of optimizer.step().",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find steps that apply what the step before has applied."""
    last: dict[int, int | None] = {}
    for moment in evidence.of(GradientsApplied):
        facts = moment.facts
        if facts.is_again:
            yield Finding.at(
                moment,
                "this step applies the gradients of the step before a second time",
                evidence=f"{facts.num_with_gradient} gradients are unchanged since the step at line "
                f"{last.get(facts.optimizer)}, and no backward pass lies between"
                f"{names_of(evidence, facts.optimizer)}",
            )
        last[facts.optimizer] = moment.line


def make_edits(source: Source, finding: Finding) -> list[Edit]:
    """Remove the second step, if it is a statement of its own."""
    call = call_at(source, finding.line, name="step")
    statement = None if call is None else statement_of(source, call)
    is_own = isinstance(statement, ast.Expr) and statement.value is call
    return drop_statement(source, statement) if statement is not None and is_own else []
