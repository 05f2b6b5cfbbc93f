"""Switching a model to evaluation changes its settings permanently.

## What it finds
Settings of layers (dropout probability, BatchNorm momentum, a flag) that change where the model is switched
to evaluation and are not restored when training continues.

## Why it matters
`train()` restores only the mode. After the first evaluation the model trains without dropout or with other
statistics, and no line of the training loop shows it.

## How to fix
Do not change settings for an evaluation: `eval()` already disables dropout. If you must, save the old values
and restore them.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.analysis.edits import statement_at
from truestep.rules.analysis.places import Scope, covers, own_nodes, scopes_of
from truestep.rules.analysis.syntax import walk
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import ForwardPass, ModeSet, SettingsChanged

RULE = Meta(
    code="MODE05",
    severity="error",
    needs=(ModeSet, ForwardPass),
    fix="Do not change the setting, eval() is enough; or restore the old value before training continues.",
)
_NEAR = 12
_SWITCHES = ("eval", "train")


def is_observed(evidence: Evidence) -> bool:
    """Whether training went on after a switch to evaluation."""
    modes = evidence.of(ModeSet)
    first = next((moment for moment in modes if not moment.facts.is_training), None)
    return first is not None and any(moment.step > first.step for moment in evidence.of(OptimizerStep))


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find settings that an evaluation has changed and nobody has put back."""
    for moment in evidence.of(SettingsChanged):
        switch = _last_switch(evidence, moment)
        if switch is None:
            continue
        for name, before, after in moment.facts.first:
            line = _assigned_at(evidence, switch, name.rpartition(".")[2])
            if line is not None:
                yield Finding(
                    message=f"switching to evaluation changes {name.rpartition('.')[2]} permanently: "
                    "it is not restored for training",
                    file=switch.file,
                    line=line,
                    step=moment.step + 1,
                    evidence=f"{name} of {moment.facts.class_name} was {before} in training before the "
                    f"switch at line {switch.line}, and is {after} in training after it; "
                    f"{moment.facts.num_changed} settings changed",
                )
                break


def _last_switch(evidence: Evidence, moment: Moment[SettingsChanged]) -> Moment[ModeSet] | None:
    found = [
        item
        for item in evidence.of(ModeSet)
        if not item.facts.is_training and item.at_s < moment.at_s and item.file
    ]
    return found[-1] if found else None


def _assigned_at(evidence: Evidence, switch: Moment[ModeSet], name: str) -> int | None:
    """Return the line that assigns the setting, if that belongs to the switch; the nearest of several."""
    source = evidence.source(switch.file)
    assert switch.line is not None
    if source is None:
        return None
    scopes = scopes_of(source.tree)
    lines = [(scope, line) for scope in scopes for line in _assignments(scope, name)]
    lines = [(scope, line) for scope, line in lines if not _is_schedule(source, line)]
    near = [line for scope, line in lines if _belongs(scope, line, switch, scopes)]
    return min(near, key=lambda line: abs(line - (switch.line or 0)), default=None)


def _assignments(scope: Scope, name: str) -> Iterator[int]:
    for node in own_nodes(scope):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Attribute) and target.attr == name:
                yield target.lineno
        if isinstance(node, ast.Call) and [ast.unparse(item) for item in (node.func, *node.args[1:2])] == [
            "setattr",
            repr(name),
        ]:
            yield node.lineno


def _is_schedule(source: Source, line: int) -> bool:
    """Whether the new value is made of the old one, or of a count of steps: as a temperature is annealed."""
    statement = statement_at(source, line)
    if isinstance(statement, ast.AugAssign):
        return True
    value = statement.value if isinstance(statement, ast.Assign | ast.Expr) else None
    given = value.args[2:] if isinstance(statement, ast.Expr) and isinstance(value, ast.Call) else [value]
    nodes = [node for item in given if item is not None for node in walk(item)]
    read = {ast.unparse(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute)}
    if read & {ast.unparse(target) for target in getattr(statement, "targets", ())}:
        return True
    around = (node for node in walk(source.tree) if isinstance(node, ast.For | ast.While))
    return any(loop.lineno < line and covers(loop, line) and read & _counted_in(loop) for loop in around)


def _counted_in(loop: ast.For | ast.While) -> set[str]:
    """Return the names that a loop which trains gives other values."""
    nodes = list(walk(loop))
    if {"backward", "step"}.isdisjoint(node.attr for node in nodes if isinstance(node, ast.Attribute)):
        return set()
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _belongs(scope: Scope, line: int, switch: Moment[ModeSet], scopes: list[Scope]) -> bool:
    """Whether an assignment is made where the mode is switched: there, or in a function called from there."""
    assert switch.line is not None
    if getattr(scope, "name", None) == "__init__":
        return False
    if isinstance(scope, ast.Module):
        return abs(line - switch.line) <= _NEAR
    if scope.name in _SWITCHES or covers(scope, switch.line):
        return True
    calling = [item for item in scopes if not isinstance(item, ast.Module) and covers(item, switch.line)]
    calls = [node for item in calling for node in own_nodes(item) if isinstance(node, ast.Call)]
    return any(ast.unparse(node.func).rpartition(".")[2] == scope.name for node in calls)


BUGGY = """
import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(16, 1)

    def eval(self):
        super().eval()
        self.drop.p = 0.0  # expect: MODE05
        return self

    def forward(self, x):
        return self.out(self.drop(torch.relu(self.body(x))))


x = torch.randn(32, 6)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    model.train()
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        print((model(x) - x.sum(1, keepdim=True)).square().mean().item())
"""

CLEAN = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(32, 6)
drop = nn.Dropout(0.3)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), drop, nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    model.train()
    drop.p = 0.3 if epoch < 2 else 0.0
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    model.eval()
    kept, drop.p = drop.p, 0.5
    with torch.no_grad():
        print((model(x) - x.sum(1, keepdim=True)).square().mean().item())
    drop.p = kept
"""

FIXED = BUGGY.replace(
    "    def eval(self):\n        super().eval()\n        self.drop.p = 0.0  # expect: MODE05\n"
    "        return self\n\n",
    "",
)
