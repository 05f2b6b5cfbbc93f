"""Every parameter of the optimizer is frozen.

## What it finds
An optimizer whose parameters all have `requires_grad=False` and no gradient at every step.

## Why it matters
Its steps do nothing. Usually the wrong part was frozen, or the part was frozen after the optimizer was
created for it. The run takes time and does not change the weights.

## How to fix
Freeze the other part, or give the optimizer the parameters that you want to train: `[p for p in
model.parameters() if p.requires_grad]`, after freezing.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.kit.roster import names, read_roster
from truestep.rules.kit.where import Function, assignments, calls, covers, only_call
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.facts.structure import Optimizer, ParametersListed
from truestep.watch.evidence.kinds import Place

RULE = Meta(
    code="PAR05",
    severity="error",
    needs=(BackwardPass, OptimizerStep, ParametersListed),
    fix="Unfreeze the optimizer's parameters, or create it from the ones that you want to train.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find optimizers that hold frozen parameters only."""
    roster = read_roster(evidence)
    for optimizer in roster.stepped if roster is not None else ():
        own = roster.of(optimizer) if roster is not None else []
        if optimizer.is_frozen and own and optimizer.num_steps >= min(2, evidence.first.num_steps):
            yield Finding.at(
                _place(evidence, optimizer),
                f"all parameters of {optimizer.class_name} are frozen: its steps change nothing",
                step=optimizer.first_step + 1,
                evidence=f"{optimizer.num_steps} steps, {len(own)} parameters, none with requires_grad "
                f"or a gradient: {names(own)}",
            )


def _place(evidence: Evidence, optimizer: Optimizer) -> Place:
    """Return where they are frozen, if that came later and is one line; else where the optimizer is made."""
    if optimizer.was_frozen:
        return optimizer.made_at
    found = []
    for source in evidence.sources:
        lines = {
            statement.lineno
            for statement, value in assignments(source.tree, "requires_grad")
            if _is_off(value)
        }
        lines |= {
            call.lineno
            for call in calls(source.tree, "requires_grad_")
            if call.args and _is_off(call.args[0])
        }
        found += [source.at(_call_of(source, line)) for line in lines]
    return found[0] if len(found) == 1 else optimizer.stepped_at


def _call_of(source: Source, line: int) -> int:
    """Return where a function that freezes what it is given is called, if that is one line."""
    for node in source.tree.body:
        if isinstance(node, Function) and covers(node, line) and node.args.args:
            return only_call(source.tree, node.name) or line
    return line


def _is_off(value: ast.expr) -> bool:
    return not (isinstance(value, ast.Constant) and value.value is True)
