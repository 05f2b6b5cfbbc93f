"""Where a script makes the labels that a framework's training loop gives to the model.

Owns reading that from the syntax. Whether the labels are right is left to the rules.
"""

import ast
from collections.abc import Iterator
from typing import Any

from truestep.rules import Evidence, Source
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import argument, assignments, calls, covers, name_of, scope_at
from truestep.watch import Moment

_HANDING_OVER = ("train", "fit")


def labels_line(evidence: Evidence, moment: Moment[Any]) -> int | None:
    """Return the line that makes the labels if the loss is computed out of sight, else that of the loss."""
    source = evidence.source(moment.file)
    if source is None or moment.line is None or not _hands_over(source.tree, moment.line):
        return moment.line
    made = dict(_made(source))
    return made.popitem()[1] if len(made) == 1 else moment.line


def _hands_over(tree: ast.Module, line: int) -> bool:
    """Whether the whole training begins at the line."""
    found = [call for name in _HANDING_OVER for call in calls(tree, name) if covers(call, line)]
    return any(isinstance(call.func, ast.Attribute) and argument(call, "labels") is None for call in found)


def _made(source: Source) -> Iterator[tuple[int, int]]:
    """Yield the lines at which `labels` are put into a batch, with those that make what is put there."""
    for node in walk(source.tree):
        for value in _given(node):
            yield value.lineno, _assigned_at(scope_at(source, value.lineno), value)


def _given(node: ast.AST) -> Iterator[ast.expr]:
    found: list[tuple[ast.AST | None, ast.expr]] = []
    if isinstance(node, ast.Dict):
        found = list(zip(node.keys, node.values, strict=True))
    elif isinstance(node, ast.Assign):
        found = [(item.slice, node.value) for item in node.targets if isinstance(item, ast.Subscript)]
    elif isinstance(node, ast.Call) and name_of(node.func) == "dict":
        yield from (item.value for item in node.keywords if item.arg == "labels")
    yield from (value for key, value in found if isinstance(key, ast.Constant) and key.value == "labels")


def _assigned_at(scope: ast.AST, value: ast.expr) -> int:
    """Return where a name gets its value, if at one place, else where it is used."""
    name = value.id if isinstance(value, ast.Name) else ""
    lines = {statement.lineno for statement, _ in assignments(scope, name)}
    return lines.pop() if len(lines) == 1 else value.lineno
