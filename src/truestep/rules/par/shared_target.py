"""The target network is the policy itself, or is copied from itself.

## What it finds
A model that is loaded from its own state: `target.load_state_dict(target.state_dict())`, or target and policy
are one object. Also a target, teacher or reference model that is a second name for the model being trained.

## Why it matters
A target network must stay fixed while the policy learns. If both are one object, it moves with every step. If
it copies itself, it never changes. Learning becomes unstable or does not happen, without an error.

## How to fix
Make the target a copy, `copy.deepcopy(policy)`, and load it from the policy:
`target.load_state_dict(policy.state_dict())`.
"""

import ast
import re
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import assignments, calls, is_called_at, name_of
from truestep.watch.evidence.facts.optimizing import OptimizerOwns, OptimizerStep
from truestep.watch.evidence.facts.passes import ForwardPass
from truestep.watch.evidence.facts.structure import ModelRefilled

RULE = Meta(
    code="PAR13",
    severity="error",
    needs=(ForwardPass, OptimizerStep),
    fix="Create the target with copy.deepcopy(policy), and load it from policy.state_dict().",
)
_TARGET = re.compile(
    r"target|teacher|(^|_)ema(_|$)|momentum|(^|_)old(_|$)|(^|_)ref(erence)?(_|$)|frozen", re.IGNORECASE
)
_MOST = 0.9


def is_observed(evidence: Evidence) -> bool:
    """Whether there is a second model, or one that is loaded from another."""
    if any(moment.facts.taken is not None for moment in evidence.of(ModelRefilled)):
        return True
    names = {name for source in evidence.sources for name in _called_names(source)}
    return any(_TARGET.search(name) for name in names)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find models that serve as their own target."""
    places: set[tuple[str | None, int | None]] = set()
    for moment in evidence.of(ModelRefilled):
        facts = moment.facts
        if facts.taken is None or facts.num_written or facts.taken.place.line != moment.line:
            continue
        if facts.num_own < _MOST * max(1, facts.num_tensors):
            continue
        if not is_called_at(evidence.source(moment.file), moment.line, name="load_state_dict"):
            continue  # a framework did it
        place = (moment.file, moment.line)
        if place not in places:
            places.add(place)
            yield Finding.at(
                moment,
                f"{facts.class_name} is loaded from its own weights: the target never changes",
                evidence=f"all {facts.num_tensors} tensors loaded at line {moment.line} share its own memory",
            )
    yield from _find_aliases(evidence, places)


def _is_plain(value: ast.expr) -> bool:
    """Whether a value is something that exists already, or a shallow copy of it."""
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) in ("copy.copy", "copy") and len(value.args) == 1
    return isinstance(value, ast.Name | ast.Attribute)


def _called_names(source: Source) -> Iterator[str]:
    for node in walk(source.tree):
        if isinstance(node, ast.Call):
            name = name_of(node.func)
            if name is not None:
                yield name


def _find_aliases(evidence: Evidence, places: set[tuple[str | None, int | None]]) -> Iterator[Finding]:
    """Find calls of targets, known by name, that are the trained model itself."""
    trained = {moment.facts.model for moment in evidence.of(OptimizerOwns) if moment.facts.num_trained}
    for source in evidence.sources:
        at_line: dict[int, set[int]] = {}
        for moment in evidence.of(ForwardPass):
            if moment.file == source.path and moment.line is not None:
                at_line.setdefault(moment.line, set()).add(moment.facts.model)
        for name in dict.fromkeys(_called_names(source)):
            if not _TARGET.search(name):
                continue
            lines = {call.lineno for call in calls(source.tree, name)}
            numbers = set().union(*(at_line.get(line, ()) for line in lines))
            # On a line of the target's own, other calls are no sign of another name: `target(x).detach()`.
            others = set().union(*(found for line, found in at_line.items() if line not in lines))
            if not numbers or not numbers <= trained & others:
                continue
            for statement, value in assignments(source.tree, name):
                if _is_plain(value) and (source.path, statement.lineno) not in places:
                    places.add((source.path, statement.lineno))
                    yield Finding.at(
                        source.at(statement.lineno),
                        f"{name} is the model being trained, not a copy of it",
                        step=1,
                        evidence=f"{name} and the trained model are the same object",
                    )
