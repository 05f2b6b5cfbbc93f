"""Where a script makes the labels that a framework's training loop gives to the model.

Owns reading that from the syntax. Whether the labels are right is left to the rules.
"""

import ast
from collections.abc import Iterator
from typing import Any

from truestep.rules import Evidence
from truestep.rules.analysis.places import covers, name_of
from truestep.rules.analysis.syntax import walk
from truestep.watch import Moment

_HANDING_OVER = ("train", "fit")


def labels_line(evidence: Evidence, moment: Moment[Any]) -> int | None:
    """Return the line that makes the labels if the loss is computed out of sight, else that of the loss."""
    source = evidence.source(moment.file)
    if source is None or moment.line is None or not _hands_over(source.tree, moment.line):
        return moment.line
    made = dict(_made(source.tree))
    return made.popitem()[1] if len(made) == 1 else moment.line


def _hands_over(tree: ast.Module, line: int) -> bool:
    """Whether the whole training begins at the line."""
    calls = [node for node in walk(tree) if isinstance(node, ast.Call)]
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr in _HANDING_OVER
        and covers(call, line)
        and not any(item.arg == "labels" for item in call.keywords)
        for call in calls
    )


def _made(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield the lines at which `labels` are put into a batch, with those that make what is put there."""
    functions = [node for node in walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in walk(tree):
        for value in _given(node):
            around = [item for item in functions if item.lineno <= value.lineno <= (item.end_lineno or 0)]
            scope: ast.AST = max(around, key=lambda item: item.lineno) if around else tree
            yield value.lineno, _assigned_at(scope, value)


def _given(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "labels":
                yield value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            key = target.slice if isinstance(target, ast.Subscript) else None
            if isinstance(key, ast.Constant) and key.value == "labels":
                yield node.value
    elif isinstance(node, ast.Call) and name_of(node.func) == "dict":
        yield from (item.value for item in node.keywords if item.arg == "labels")


def _assigned_at(scope: ast.AST, value: ast.expr) -> int:
    """Return where a name gets its value, if at one place, else where it is used."""
    if not isinstance(value, ast.Name):
        return value.lineno
    lines = {
        node.lineno
        for node in walk(scope)
        if isinstance(node, ast.Assign)
        and any(isinstance(item, ast.Name) and item.id == value.id for item in node.targets)
    }
    return lines.pop() if len(lines) == 1 else value.lineno
