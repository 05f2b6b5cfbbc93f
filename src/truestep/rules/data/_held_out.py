"""Held-out data as a source names them.

Owns reading from the syntax whether a line evaluates on what is called validation or test, and where that was
cut from the rest. Whether it was trained on is left to the rule.
"""

import ast

from truestep.rules import Source
from truestep.rules.kit.loaders import words_say
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import covers, name_of

_NOT_DATA = ("eval", "dev")
"""A method of models, and a device."""


def evaluated_at(source: Source, line: int) -> str | None:
    """Return a name among the arguments of calls at a line that says evaluation, if none says training."""
    names: list[str] = []
    for node in walk(source.tree):
        if isinstance(node, ast.Call) and covers(node, line):
            for item in (*node.args, *(word.value for word in node.keywords)):
                names += [part for inner in walk(item) if (part := name_of(inner)) is not None]
    said = {name: words_say(name) for name in names if name not in _NOT_DATA}
    if "training" in said.values():
        return None
    return next((name for name, says in said.items() if says == "evaluation"), None)


def cut_at(source: Source, name: str, *, before: int) -> int | None:
    """Return the first line that assigns a name, if it stands before the line that uses it."""
    lines = [
        node.lineno
        for node in walk(source.tree)
        if isinstance(node, ast.Assign)
        and any(name_of(item) == name for target in node.targets for item in walk(target))
    ]
    return min((line for line in lines if line < before), default=None)
