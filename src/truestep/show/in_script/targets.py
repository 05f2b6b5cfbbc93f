"""Which values a line gives a name to: read from the source, once for each file.

Owns the mapping from a line to its statement, and from a statement to its targets. Runs nothing.
"""

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

RETURNED = "returns"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPOUND = (*_FUNCTIONS, ast.ClassDef, ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith)
_OTHER_COMPOUND = (ast.Try, ast.TryStar, ast.Match)


class Target(NamedTuple):
    """A value with a name: a variable, or an attribute of one."""

    variable: str
    attribute: str | None = None

    @property
    def label(self) -> str:
        """The name as the script writes it."""
        return self.variable if self.attribute is None else f"{self.variable}.{self.attribute}"


@dataclass(kw_only=True)
class Targets:
    """What one file gives names to."""

    statements: dict[int, int] = field(default_factory=dict)
    """For each line, the first line of its statement."""
    targets: dict[int, list[Target]] = field(default_factory=dict)
    """By the first line of a statement."""
    returns: set[int] = field(default_factory=set)
    """First lines of statements that return a value."""
    parameters: dict[int, list[Target]] = field(default_factory=dict)
    """By the line at which a function's code begins."""


@lru_cache(maxsize=256)
def targets_of(file: str) -> Targets:
    """Return what a file's lines give names to; nothing if it cannot be parsed."""
    found = Targets()
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            _add(found, node)
    return found


def _add(found: Targets, node: ast.stmt) -> None:
    if isinstance(node, _OTHER_COMPOUND):
        return
    for line in range(node.lineno, _last_line(node) + 1):
        found.statements[line] = node.lineno
    if isinstance(node, _FUNCTIONS):
        first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        found.parameters[first] = [Target(item.arg) for item in given if item.arg not in ("self", "cls")]
        found.statements[first] = node.lineno
    elif isinstance(node, ast.Return):
        if node.value is not None and not isinstance(node.value, ast.Constant):
            found.returns.add(node.lineno)
    else:
        named = list(dict.fromkeys(_named(node)))
        if named:
            found.targets.setdefault(node.lineno, []).extend(named)


def _last_line(node: ast.stmt) -> int:
    """Return the last line of a statement, or of its head if statements follow inside of it."""
    if isinstance(node, _COMPOUND):
        return max(node.lineno, min(item.lineno for item in node.body) - 1)
    return node.end_lineno or node.lineno


def _named(node: ast.stmt) -> Iterator[Target]:
    if isinstance(node, ast.Assign):
        places: list[ast.expr] = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        places = [node.target]
    elif isinstance(node, ast.With | ast.AsyncWith):
        places = [item.optional_vars for item in node.items if item.optional_vars is not None]
    else:
        places = []
    for place in places:
        yield from _targets_in(place)
    if not isinstance(node, _COMPOUND):
        for item in ast.walk(node):
            if isinstance(item, ast.NamedExpr):
                yield Target(item.target.id)


def _targets_in(place: ast.expr) -> Iterator[Target]:
    if isinstance(place, ast.Name):
        if place.id != "_":
            yield Target(place.id)
    elif isinstance(place, ast.Attribute):
        if isinstance(place.value, ast.Name):
            yield Target(place.value.id, place.attr)
    elif isinstance(place, ast.Tuple | ast.List):
        for item in place.elts:
            yield from _targets_in(item)
    elif isinstance(place, ast.Starred | ast.Subscript):
        yield from _targets_in(place.value)
