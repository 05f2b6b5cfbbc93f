"""A target network is a copy of the trained one and never changes.

## What it finds
A network that starts as a copy of the trained one, is called while that one learns, and still has its first
weights at the end. Either it is called a target, momentum or averaged network and nothing in the script
updates it, or the lines that should update it run and change nothing: they read a model that is not trained,
or load the target into the trained network instead of the other way round.

## Why it matters
The goals are those of an untrained network for the whole run. The loss falls, because constant goals are
easy to fit, but the network does not learn what it should.

## How to fix
Update the target after the optimizer step: `target.load_state_dict(policy.state_dict())` every few hundred
steps, or `p_target.lerp_(p, 0.005)` for each pair of parameters after each step.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.analysis.places import Function, calls, covers, name_of, only_call
from truestep.rules.analysis.syntax import walk
from truestep.rules.par._roster import Roster, read_roster
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import ForwardPass
from truestep.watch.evidence.facts.structure import ModelRefilled, Parameter, ParametersListed

RULE = Meta(
    code="PAR17",
    severity="error",
    needs=(ForwardPass, OptimizerStep, ParametersListed),
    fix="Update the target from the trained network after the optimizer step.",
    caused_by=("PAR13", "PAR15", "PAR16"),
)
_TARGET = re.compile(
    r"target|(^|_)ema(_|$)|momentum|key_?encoder|encoder_?k(ey)?$|shadow|averag|mean_?teacher", re.IGNORECASE
)
_LEAST_STEPS = 8
_LEAST_CALLS = 3
_LEAST_TURNED = 2
_HARMLESS = {"eval", "train", "to", "cuda", "cpu", "float", "half", "bfloat16", "requires_grad_", "training"}
_CHANGES = re.compile(r"(copy|lerp|mul|add|sub|div|fill|set|clamp|addcmul|zero)_$")


@dataclass(frozen=True)
class _Copy:
    """A network that was a copy of the trained one, and has not changed."""

    name: str
    parameters: list[Parameter]
    num_calls: int


@dataclass
class _Lines:
    """What the script does with a network, besides calling it."""

    is_unknown: bool = False
    """Whether it is given to something that may change it."""
    updates: list[tuple[Source, ast.stmt]] = field(default_factory=list)
    """Statements that write into it, and that can be reached."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find copies that never follow what they are copies of."""
    roster = read_roster(evidence)
    if roster is None or evidence.is_part or evidence.first.ended != "finished":
        return  # a run that is cut short may not come to the first update
    if evidence.first.num_steps < _LEAST_STEPS:
        return
    turned = list(_find_turned_around(evidence, roster))
    yield from turned
    for copied in _copies(evidence, roster) if not turned else ():
        lines = _read_lines(evidence, copied.name)
        seen = (
            f"{copied.name} began as a copy of the trained network and was called in {copied.num_calls} of "
            f"{evidence.first.num_steps} steps; the trained weights moved, and all {len(copied.parameters)} "
            f"parameters of {copied.name} still have their first values"
        )
        effectless = [item for item in lines.updates if _is_applied(evidence, *item)]
        if effectless:
            source, statement = effectless[-1]
            yield Finding(
                message=f"this update does not change {copied.name}",
                file=source.path,
                line=_caller(source, statement) or statement.lineno,
                evidence=f"{seen}; expected weights that follow the trained network",
            )
        elif not lines.updates and not lines.is_unknown and _is_moving(roster, copied):
            yield _never(evidence, copied, seen)


def _find_turned_around(evidence: Evidence, roster: Roster) -> Iterator[Finding]:
    """Find networks that stand still and are loaded into trained ones again and again."""
    called: dict[str, set[int | None]] = {}
    for model, name in _called_names(evidence):
        called.setdefault(name, set()).add(model)
    for name, models in called.items():
        own = [item for item in roster.parameters if item.model in models]
        loads = _loads_of(evidence, roster, name)
        num_calls = _num_steps_with(evidence, models)
        is_still = bool(own) and not any(item.groups or item.is_changed or item.is_loaded for item in own)
        if is_still and len(loads) >= _LEAST_TURNED and num_calls >= _LEAST_CALLS:
            yield Finding.at(
                loads[0],
                f"the trained network is overwritten with {name}, which is never trained",
                count=len(loads),
                evidence=f"{name} was called in {num_calls} of {evidence.first.num_steps} steps, none of its "
                f"{len(own)} parameters changed, and it was loaded into the trained one {len(loads)} times",
                fix="Load the target from the trained network: the other way round.",
            )


def _loads_of(evidence: Evidence, roster: Roster, name: str) -> list[Moment[ModelRefilled]]:
    """Return when trained networks were loaded from a network of this name, after the first step."""
    trained = {item.model for item in roster.parameters if item.groups}
    found = []
    for moment in evidence.of(ModelRefilled):
        source = evidence.source(moment.file)
        if moment.step and moment.line and moment.facts.model in trained and source is not None:
            loads = [call for call in calls(source.tree, "load_state_dict") if covers(call, moment.line)]
            states = [one.func for load in loads for one in calls(load, "state_dict")]
            if any(isinstance(state, ast.Attribute) and name_of(state.value) == name for state in states):
                found.append(moment)
    return found


def _num_steps_with(evidence: Evidence, models: set[int | None]) -> int:
    """Return in how many steps models were called, after the first."""
    passes = evidence.of(ForwardPass)
    return len({moment.step for moment in passes if moment.facts.model in models and moment.step > 0})


def _is_moving(roster: Roster, copied: _Copy) -> bool:
    """Whether a network is meant to follow: a copy of what was loaded may be a fixed goal."""
    is_loaded = any(item.is_loaded for item in roster.parameters if item.groups)
    return bool(_TARGET.search(copied.name)) and not is_loaded


def _caller(source: Source, statement: ast.stmt) -> int | None:
    """Return the only line that calls the function around a statement with the model to follow."""
    around = [
        node for node in walk(source.tree) if isinstance(node, Function) and covers(node, statement.lineno)
    ]
    if not around or len(around[-1].args.args) < 2:
        return None
    return only_call(source.tree, around[-1].name)


def _never(evidence: Evidence, copied: _Copy, seen: str) -> Finding:
    """Report it at the step that trains the original: there the update belongs."""
    owners = {moment.facts.optimizer: moment for moment in evidence.of(OptimizerStep)}
    last = owners[max(owners)] if len(owners) == 1 else evidence.of(OptimizerStep)[-1]
    return Finding(
        message=f"{copied.name} is never updated: nothing in the script changes it after this step",
        file=last.file,
        line=last.line,
        evidence=f"{seen}; no line that runs writes into {copied.name}",
    )


def _copies(evidence: Evidence, roster: Roster) -> Iterator[_Copy]:
    """Yield networks by name that were copies and stand still."""
    if not any(item.is_copy for item in roster.parameters):
        return
    by_name: dict[str, list[Parameter]] = {}
    names = dict(sorted(_called_names(evidence), key=lambda pair: bool(_TARGET.search(pair[1]))))
    for item in roster.parameters:
        found = [part for part in (item.path or "").split(".") if _TARGET.search(part)]
        name = found[0] if found else names.get(item.model)
        if name is not None:
            by_name.setdefault(name, []).append(item)
    for name, items in by_name.items():
        is_still = not any(item.groups or item.is_changed for item in items)
        if is_still and any(item.is_copy for item in items) and all(item.is_equal for item in items):
            num_calls = _num_steps_with(evidence, {item.model for item in items})
            if num_calls >= _LEAST_CALLS:
                yield _Copy(name, items, num_calls)


def _called_names(evidence: Evidence) -> Iterator[tuple[int | None, str]]:
    """Yield models with the name under which they are called; a name that several have says nothing."""
    for source in evidence.sources:
        at_line: dict[int, set[int]] = {}
        for moment in evidence.of(ForwardPass):
            if moment.file == source.path and moment.line is not None:
                at_line.setdefault(moment.line, set()).add(moment.facts.model)
        names = {name_of(node.func) for node in walk(source.tree) if isinstance(node, ast.Call)}
        for name in sorted(name for name in names if name):
            found = [at_line.get(call.lineno, set()) for call in calls(source.tree, name)]
            numbers = set().union(*found)
            if len(numbers) == 1 or (_TARGET.search(name) and any(len(item) == 1 for item in found)):
                yield from ((number, name) for item in found if len(item) == 1 for number in item)


def _read_lines(evidence: Evidence, name: str) -> _Lines:
    """Return what the sources do with a network of that name. What cannot be told counts as an update."""
    lines = _Lines()
    mentioned = {
        found for source in evidence.sources for node in walk(source.tree) if (found := name_of(node))
    }
    for source in evidence.sources:
        parents = {child: node for node in walk(source.tree) for child in ast.iter_child_nodes(node)}
        for node in walk(source.tree):
            if name_of(node) != name or not isinstance(getattr(node, "ctx", None), ast.Load):
                continue
            function = _around(node, parents, Function)
            if function is not None and function.name not in mentioned and not _is_special(function.name):
                continue  # nothing calls it
            change = _change(node, parents)
            if change is None:
                lines.is_unknown = True
            elif change and not _is_start(source, change[0], function):
                lines.updates.append((source, change[0]))
    return lines


def _is_special(name: str) -> bool:
    return name.startswith("__") or name in ("forward", "training_step", "main")


def _around(node: ast.AST, parents: dict[ast.AST, ast.AST], kind: Any) -> Any:
    at: ast.AST | None = node
    while at is not None:
        if isinstance(at, kind):
            return at
        at = parents.get(at)
    return None


def _change(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> list[ast.stmt] | None:
    """Return the statement by which a mention changes the network; none if it does not; None if unknown."""
    above = parents.get(node)
    if isinstance(above, ast.Call) and above.func is node:
        return []  # it is called
    if not isinstance(above, ast.Attribute):
        return None
    if above.attr == "load_state_dict":
        return _statement(above, parents)
    user = parents.get(parents.get(above, above))
    if above.attr in ("parameters", "named_parameters"):
        return _change_in_loop(parents.get(above), user, _around(above, parents, ast.For))
    if above.attr == "state_dict":  # saved, or loaded into another one
        return [] if isinstance(user, ast.Dict | ast.Call) else None
    return [] if above.attr in _HARMLESS else None


def _change_in_loop(call: ast.AST | None, user: ast.AST | None, loop: Any) -> list[ast.stmt] | None:
    """Return the statement that changes the parameters that a call gives, as `_change` does."""
    if loop is None or not any(call is item for item in walk(loop.iter)):
        # Counted, frozen or given to a function in one line: `sum(...)`, `update(t.parameters(), ...)`.
        return None if isinstance(user, ast.Call) else []
    name = _loop_variable(loop, call)
    return [statement for statement in loop.body if any(_is_written(item, name) for item in walk(statement))][
        :1
    ]


def _loop_variable(loop: ast.For, call: ast.AST | None) -> str | None:
    """Return the variable of a loop that stands for the parameters that a call gives."""
    given = loop.iter.args if isinstance(loop.iter, ast.Call) and name_of(loop.iter.func) == "zip" else []
    target = loop.target
    if call in given and isinstance(target, ast.Tuple) and len(target.elts) == len(given):
        target = target.elts[given.index(call)]
    if isinstance(target, ast.Tuple):  # with its name
        target = target.elts[-1]
    return name_of(target)


def _is_written(node: ast.AST, name: str | None) -> bool:
    """Whether a variable's tensor is changed in place; an unknown variable's may be."""
    if isinstance(node, ast.Assign) and name_of(node.targets[0]) == "data":
        node = node.targets[0]
    elif not isinstance(node, ast.Call) or not _CHANGES.search(name_of(node.func) or ""):
        return False
    at: ast.AST = node
    while not isinstance(at, ast.Name):
        if isinstance(at, ast.Attribute) and at.attr == "grad":
            return False
        if not isinstance(at, ast.Attribute | ast.Call | ast.Subscript):
            return False
        at = at.func if isinstance(at, ast.Call) else at.value
    return name is None or at.id == name


def _statement(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> list[ast.stmt] | None:
    at: ast.AST | None = node
    while at is not None and not isinstance(at, ast.stmt):
        at = parents.get(at)
    return None if at is None else [at]


def _is_start(source: Source, statement: ast.stmt, function: ast.FunctionDef | None) -> bool:
    """Whether a statement gives the copy its first weights and can run only once."""
    if function is not None and function.name not in ("__init__", "main", "build", "make_models"):
        return False
    loops = [node for node in walk(source.tree) if isinstance(node, ast.For | ast.While)]
    return not any(covers(loop, statement.lineno) for loop in loops if loop is not statement)


def _is_applied(evidence: Evidence, source: Source, statement: ast.stmt) -> bool:
    """Whether a statement was seen to run after the first step."""
    places = [(item.file, item.line, item.step) for item in evidence.of(ModelRefilled)]
    places += [(item.file, item.line, item.step) for item in evidence.operations]
    return any(step > 0 and file == source.path and covers(statement, line) for file, line, step in places)


BUGGY = """
import copy

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Linear(4, 2)
target = copy.deepcopy(policy)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
for step in range(12):
    x = torch.randn(8, 4)
    with torch.no_grad():
        goal = 1 + 0.9 * target(x).amax(1)
    loss = (policy(x)[:, 0] - goal).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # expect: PAR17
"""

CLEAN = """
import copy

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Linear(4, 2)
target = copy.deepcopy(policy)
reference = copy.deepcopy(policy)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
for step in range(12):
    x = torch.randn(8, 4)
    with torch.no_grad():
        goal = 1 + 0.9 * target(x).amax(1)
        start = reference(x)
    loss = (policy(x)[:, 0] - goal).square().mean() + 0.01 * (policy(x) - start).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 49:  # not reached in this run
        target.load_state_dict(policy.state_dict())
"""

FIXED = BUGGY.replace(
    "    optimizer.step()  # expect: PAR17\n",
    "    optimizer.step()\n    if step % 4 == 3:\n        target.load_state_dict(policy.state_dict())\n",
)
