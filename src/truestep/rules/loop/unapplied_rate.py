"""A learning rate is computed and never reaches the optimizer.

## What it finds
A schedule by hand whose rate changes from step to step, while the optimizer keeps the rate that it was made
with. The new rate is only stored in a variable, in `optimizer.lr`, in `optimizer.defaults` or under another
key of a parameter group. torch reads none of these.

## Why it matters
Warm-up and decay never happen. Logs show the computed rate, so the plot looks right.

## How to fix
Set the rate of every group before the step: `for group in optimizer.param_groups: group["lr"] = lr`.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.analysis.places import assignments, name_of
from truestep.rules.analysis.syntax import walk
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import OptimizerStep, RateBeside

RULE = Meta(
    code="LOOP19",
    severity="error",
    needs=(OptimizerStep, RateBeside),
    fix='Set it in every group before the step: for group in optimizer.param_groups: group["lr"] = lr.',
)
_LEAST_VALUES, _MOST_SHOWN = 3, 3
_SHOWING = frozenset(
    {
        *("print", "info", "debug", "log", "write", "append", "add_scalar", "set_postfix"),
        *("set_description", "format", "round", "update", "join"),
    }
)
_SET_AS = {
    "attribute": "an attribute of the optimizer, which torch does not read",
    "defaults": "the optimizer's defaults, which are read only for new groups",
    "group": "another key of the group, which torch does not read",
    "variable": "a variable that only the output uses",
}


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find rates that change beside an optimizer whose own rate does not."""
    kept: dict[tuple[int, str, str], list[Moment[RateBeside]]] = {}
    for moment in evidence.of(RateBeside):
        kept.setdefault(moment.facts[:3], []).append(moment)
    for (optimizer, where, name), moments in kept.items():
        values = list(dict.fromkeys(moment.facts.value for moment in moments))
        least = _LEAST_VALUES if where == "variable" else 1
        if len(values) < least or _num_rates(evidence, optimizer) > 1:
            continue
        place = _find_line(evidence, where, name)
        if place is not None:
            steps = ", ".join(f"{value:.3g}" for value in values[:_MOST_SHOWN])
            yield Finding(
                message="the learning rate is computed, but the optimizer never gets it",
                file=place[0],
                line=place[1],
                step=moments[0].step + 1,
                evidence=f"{name} was {steps} while the optimizer's rate stayed at "
                f"{moments[0].facts.rate:.3g}; it is set in {_SET_AS[where]}",
            )


def _num_rates(evidence: Evidence, optimizer: int) -> int:
    """Return how often the optimizer's own rates were seen to change, the first time included."""
    steps = [moment.facts for moment in evidence.of(OptimizerStep) if moment.facts.optimizer == optimizer]
    return sum(step.rates is not None for step in steps)


def _find_line(evidence: Evidence, where: str, name: str) -> tuple[str, int] | None:
    """Return where the rate is set; None if it may be used for something."""
    for source in evidence.sources:
        if where == "variable":
            line = _computed_at(source, name) if not _is_used(source, name) else None
        else:
            line = _stored_at(source, where, name)
        if line is not None:
            return source.path, line
    return None


def _computed_at(source: Source, name: str) -> int | None:
    """Return the last line in a loop or a function that computes the rate."""
    found = [
        statement.lineno
        for statement, value in assignments(source.tree, name)
        if not isinstance(value, ast.Constant) or isinstance(statement, ast.AugAssign)
    ]
    return found[-1] if found else None


def _is_used(source: Source, name: str) -> bool:
    """Whether the variable is read anywhere but to be shown, or to compute its own next value."""
    shown: set[int] = set()
    for node in walk(source.tree):
        is_output = isinstance(node, ast.Call) and name_of(node.func) in _SHOWING
        targets = node.targets if isinstance(node, ast.Assign) else []
        is_own = any(name_of(target) == name and isinstance(target, ast.Name) for target in targets)
        if is_output or is_own or isinstance(node, ast.JoinedStr):
            shown.update(id(item) for item in walk(node))
    loads = [
        node
        for node in walk(source.tree)
        if isinstance(node, ast.Name | ast.Attribute)
        and name_of(node) == name
        and isinstance(node.ctx, ast.Load)
    ]
    given = [node for node in walk(source.tree) if isinstance(node, ast.arg) and node.arg == name]
    return bool(given) or any(id(node) not in shown for node in loads if not _is_initial(source, node))


def _is_initial(source: Source, load: ast.Name | ast.Attribute) -> bool:
    """Whether a load only gives an optimizer the rate that it starts with."""
    for node in walk(source.tree):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "lr" and keyword.value is load:
                    return True
    return False


def _stored_at(source: Source, where: str, name: str) -> int | None:
    """Return the line that puts the rate where torch does not look."""
    lines = []
    for node in walk(source.tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AugAssign) else targets
        for target in targets:
            if where == "attribute":
                is_it = (
                    isinstance(target, ast.Attribute)
                    and target.attr == name
                    and name_of(target.value) != "self"
                )
            else:
                is_it = isinstance(target, ast.Subscript) and _is_key(target.slice, name)
                if where == "defaults" and isinstance(target, ast.Subscript):
                    is_it = is_it and name_of(target.value) == "defaults"
            if is_it:
                lines.append(target.lineno)
    return max(lines) if lines else None


def _is_key(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == name


BUGGY = """
import math

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    lr = 0.1 * 0.5 * (1 + math.cos(math.pi * step / 12))  # expect: LOOP19
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} lr {lr:.4f} loss {loss.item():.4f}")
"""

CLEAN = """
import math

import torch
from torch import nn

torch.manual_seed(0)
model, slow = nn.Linear(4, 1), nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    lr = 0.1 * 0.5 * (1 + math.cos(math.pi * step / 12))
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for weight, other in zip(slow.parameters(), model.parameters()):
            weight.lerp_(other, lr)
"""

FIXED = BUGGY.replace(
    "    optimizer.step()\n",
    '    for group in optimizer.param_groups:\n        group["lr"] = lr\n    optimizer.step()\n',
)
