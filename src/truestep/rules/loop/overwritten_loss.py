"""A loop computes a loss in each round and keeps only the last one for the backward pass.

## What it finds
A loop over heads, tasks, chunks, time steps or batches that assigns its loss with `=`, followed by one
backward pass. In each of the first steps the rule sees the losses of all rounds with their graphs, and that
the backward pass starts from the last one alone. Loops that refine one prediction, and loops with `break`,
are not reported.

## Why it matters
Only the last round trains the model. All others cost their time, and the reported loss is that of the last
round, so the curve looks fine.

## How to fix
Add up: start with `loss = 0` before the loop and write `loss = loss + criterion(...)` in it. Or call
`backward()` in each round.
"""

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.analysis.flow import OperationGraph
from truestep.rules.analysis.places import Function, name_of
from truestep.rules.analysis.syntax import walk
from truestep.watch import Operation
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="LOOP26",
    severity="error",
    needs=(BackwardPass, OptimizerStep),
    fix="Add the losses of all rounds: loss = loss + criterion(...), or call backward() in each round.",
)
_LEAST_STEPS, _LEAST_LOSSES = 2, 2
_MAX_WALK = 20_000
Site = tuple[str | None, int | None]


class _Assigned(NamedTuple):
    """A statement in a loop that assigns what a later statement trains with."""

    source: Source
    loop: ast.For
    statement: ast.Assign
    name: str


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find loops of whose losses only the last one is trained with."""
    found = _find_series(evidence.flow)
    reported: set[int] = set()
    for assigned in _find_assigned(evidence) if found else ():
        for (file, line), steps in found.items():
            if id(assigned.statement) in reported or not _is_from(assigned, file, line):
                continue
            reported.add(id(assigned.statement))
            num, first = len(steps[min(steps)]), steps[min(steps)][0]
            yield Finding(
                message=f"each round of this loop overwrites {assigned.name}: only the last one is used",
                file=assigned.source.path,
                line=assigned.statement.lineno,
                step=first.step + 1,
                count=len(steps),
                evidence=f"in the first of {len(steps)} steps, {num} losses with a graph were computed, "
                f"and {num - 1} of them are no part of what backward() was called on",
            )


def _find_series(flow: OperationGraph) -> dict[Site, dict[int, list[Operation]]]:
    """Return, by line and step, losses of which only the last one is trained with."""
    used = _trained_with(flow)
    lines: dict[tuple[Site, str, str], dict[int, list[Operation]]] = {}
    for item in flow.all:
        is_loss = item.line is not None and len(item.outs) > 0 and item.outs[0].shape == ()
        if not is_loss or item.step not in used or not any(given.has_grad for given in item.ins):
            continue
        if item.name == "aten.ones_like.default" or item.thread:
            continue
        key = ((item.file, item.line), item.name, item.module)
        lines.setdefault(key, {}).setdefault(item.step, []).append(item)
    found: dict[Site, dict[int, list[Operation]]] = {}
    for (place, _, _), steps in lines.items():
        is_series = len(steps) >= _LEAST_STEPS and set(steps) == set(used)
        if is_series and all(_is_last_only(losses, used[step]) for step, losses in steps.items()):
            found.setdefault(place, steps)
    return found


def _is_last_only(losses: list[Operation], used: set[int]) -> bool:
    reached = [item.index in used for item in losses]
    return len(losses) >= _LEAST_LOSSES and reached[-1] and not any(reached[:-1])


def _trained_with(flow: OperationGraph) -> dict[int, set[int]]:
    """Return, by step, all that gradients were computed for: what the losses of backward passes depend on."""
    found: dict[int, set[int]] = {}
    for item in flow.named("ones_like.default"):  # the gradient that a backward pass begins with
        if item.ins and item.ins[0].has_grad and item.ins[0].shape == ():
            before = flow.before(item.ins[0], limit=_MAX_WALK)
            found.setdefault(item.step, set()).update(one.index for one in before)
    return found


def _find_assigned(evidence: Evidence) -> Iterator[_Assigned]:
    """Yield assignments in loops whose value is used after the loop by a backward pass, or returned."""
    for source in evidence.sources:
        for scope in (source.tree, *(node for node in walk(source.tree) if isinstance(node, Function))):
            own = list(_own(scope))
            uses = [node for node in own if isinstance(node, ast.Expr | ast.Return) and _is_use(node)]
            for loop in own:
                if isinstance(loop, ast.For) and not _has_break(loop):
                    yield from _assigned_in(source, own, loop, uses)


def _assigned_in(
    source: Source, own: list[ast.stmt], loop: ast.For, uses: Sequence[ast.stmt]
) -> Iterator[_Assigned]:
    after = [use for use in uses if use.lineno > (loop.end_lineno or loop.lineno)]
    names = {name for use in after[:1] for name in _names(use)}
    for node in own:
        is_between = after and (loop.end_lineno or 0) < node.lineno < after[0].lineno
        if is_between and isinstance(node, ast.Assign) and _targets(node) & names:
            names |= _names(node.value)
    for statement in _own(loop):
        if isinstance(statement, ast.Assign) and _innermost(own, statement) is loop:
            for name in sorted(_targets(statement) & names):
                is_kept = name in _names(statement.value) or _is_added_up(loop, name)
                if not is_kept and _depends_on_round(loop, statement):
                    yield _Assigned(source, loop, statement, name)


def _depends_on_round(loop: ast.For, statement: ast.Assign) -> bool:
    """Whether a loss is one of this round, and not only one of a state that all rounds work on."""
    rounds = _names(loop.target)
    made: dict[str, set[str]] = {}
    for node in _own(loop):
        if isinstance(node, ast.Assign) and node is not statement:
            for name in _targets(node):
                made.setdefault(name, set()).update(_names(node.value))
        elif isinstance(node, ast.For):
            rounds |= _names(node.target)
    seen: set[str] = set()
    queue = [*_names(statement.value)]
    while queue:
        name = queue.pop()
        if name in rounds:
            return True
        if name not in seen and name not in made.get(name, ()):
            seen.add(name)
            queue += made.get(name, ())
    return False


def _own(scope: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a scope, without those of functions and classes in it."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, Function | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _own(node)


def _innermost(own: list[ast.stmt], statement: ast.stmt) -> ast.For | None:
    around = [node for node in own if isinstance(node, ast.For) and statement in walk(node)]
    return max(around, key=lambda node: node.lineno, default=None)


def _is_use(node: ast.stmt) -> bool:
    """Whether a statement runs a backward pass, or returns something."""
    if isinstance(node, ast.Return):
        return node.value is not None
    called = [name_of(item.func) or "" for item in walk(node) if isinstance(item, ast.Call)]
    return any(name.endswith("backward") for name in called)


def _is_added_up(loop: ast.For, name: str) -> bool:
    """Whether the loop adds to the variable, too."""
    return any(isinstance(node, ast.AugAssign) and name_of(node.target) == name for node in walk(loop))


def _has_break(loop: ast.For) -> bool:
    """Whether a round may be the last one by choice."""
    return any(isinstance(node, ast.Break) for node in walk(loop))


def _targets(statement: ast.Assign) -> set[str]:
    return {name for target in statement.targets for name in _names(target)}


def _names(node: ast.AST) -> set[str]:
    return {name for item in walk(node) if (name := name_of(item)) is not None}


def _is_from(assigned: _Assigned, file: str | None, line: int | None) -> bool:
    """Whether losses of a line are what a statement assigns: its own, or those of something that it calls."""
    statement, loop = assigned.statement, assigned.loop
    if line is None or file is None:
        return False
    if file == assigned.source.path and loop.lineno <= line <= (loop.end_lineno or line):
        return statement.lineno <= line <= (statement.end_lineno or line)
    return any(isinstance(node, ast.Call) for node in walk(statement.value))


BUGGY = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
body = nn.Linear(8, 16)
heads = nn.ModuleList([nn.Linear(16, 1) for _ in range(3)])
optimizer = torch.optim.Adam([*body.parameters(), *heads.parameters()], lr=0.01)
for step in range(6):
    x = torch.randn(32, 8)
    features = body(x).relu()
    for number, head in enumerate(heads):
        loss = F.mse_loss(head(features), x[:, number : number + 1])  # expect: LOOP26
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
body = nn.Linear(8, 16)
heads = nn.ModuleList([nn.Linear(16, 1) for _ in range(3)])
optimizer = torch.optim.Adam([*body.parameters(), *heads.parameters()], lr=0.01)
for step in range(6):
    x = torch.randn(32, 8)
    features = body(x).relu()
    losses = {}
    for number, head in enumerate(heads):
        loss = F.mse_loss(head(features), x[:, number : number + 1])
        losses[number] = loss
    loss = sum(losses.values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FIXED = BUGGY.replace("    for number", "    loss = 0.0\n    for number").replace(
    "loss = F.mse_loss(head(features), x[:, number : number + 1])  # expect: LOOP26",
    "loss = loss + F.mse_loss(head(features), x[:, number : number + 1])",
)
