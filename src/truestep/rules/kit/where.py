"""Places in the user's sources: where something that was seen at run time is written.

Owns the search in syntax trees. Says nothing about whether it is wrong.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from truestep.rules.evidence import Evidence, Source
from truestep.rules.kit.syntax import walk
from truestep.watch import Moment, Operation
from truestep.watch.evidence.kinds import Place

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | Function
N = TypeVar("N", bound=ast.AST)


def name_of(node: ast.AST | None) -> str | None:
    """Return the last name of `a`, `self.a` or `x.y.a`; None for all else."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def identifiers(node: ast.AST) -> set[str]:
    """Return the names in an expression."""
    return {item.id for item in nodes(node, ast.Name)}


def nodes(tree: ast.AST, *kinds: type[N]) -> list[N]:
    """Return a tree's nodes of some kinds."""
    return [node for node in walk(tree) if isinstance(node, kinds)]


def defined(tree: ast.AST, name: str | None, *kinds: type[N]) -> list[N]:
    """Return the classes or functions of a name."""
    return [node for node in nodes(tree, *kinds) if getattr(node, "name", None) == name]


def innermost(tree: ast.AST, line: int | None, *kinds: type[N]) -> N | None:
    """Return the innermost node of some kinds that a line belongs to."""
    around = [node for node in nodes(tree, *kinds) if covers(node, line)]
    return max(around, key=lambda node: node.lineno, default=None)  # type: ignore[attr-defined]


def scope_at(source: Source, line: int | None) -> Scope:
    """Return the innermost function that a line is in, or the file."""
    return innermost(source.tree, line, ast.FunctionDef, ast.AsyncFunctionDef) or source.tree


def arguments(call: ast.Call) -> list[ast.expr]:
    """Return all that a call is given."""
    return [*call.args, *(item.value for item in call.keywords)]


def argument(call: ast.AST | None, name: str, *, place: int | None = None) -> ast.expr | None:
    """Return what a call is given by name or at a place; None if it is no call."""
    if not isinstance(call, ast.Call):
        return None
    named = (item.value for item in call.keywords if item.arg == name)
    return next(named, call.args[place] if place is not None and len(call.args) > place else None)


def pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a statement assigns to what; items of tuples one by one."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
        match target, value:
            case ast.Tuple(elts=one), ast.Tuple(elts=other) if len(one) == len(other):
                yield from zip(one, other, strict=True)
            case ast.expr(), ast.expr():
                yield target, value


def class_in(source: Source, qualname: str | None) -> ast.AST:
    """Return a class by its name; the whole file if it is not there."""
    found = defined(source.tree, (qualname or "").rpartition(".")[2], ast.ClassDef)
    return found[0] if found else source.tree


def assignments(tree: ast.AST, name: str) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """Yield statements that assign to a variable or an attribute of that name, with the value, in order."""
    found = []
    for node in walk(tree):
        if isinstance(node, ast.Assign):
            targets = [item for target in node.targets for item in _flat(target)]
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        else:
            continue
        if node.value is not None and any(name_of(target) == name for target in targets):
            found.append((node, node.value))
    yield from sorted(found, key=lambda pair: pair[0].lineno)


def _flat(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, ast.Tuple | ast.List) else [target]


def calls(tree: ast.AST, name: str) -> list[ast.Call]:
    """Return calls of functions or methods of that name."""
    return [call for call in nodes(tree, ast.Call) if name_of(call.func) == name]


def only_call(tree: ast.AST, name: str) -> int | None:
    """Return the one line with calls of functions of that name; None if there are more, or none."""
    lines = {call.lineno for call in calls(tree, name)}
    return lines.pop() if len(lines) == 1 else None


def covers(node: ast.AST, line: int | None) -> bool:
    """Return whether a line is one of those on which something is written."""
    first = getattr(node, "lineno", None)
    return line is not None and first is not None and first <= line <= (node.end_lineno or first)  # type: ignore[attr-defined]


def is_called_at(source: Source | None, line: int | None, *, name: str) -> bool:
    """Return whether a function of that name is called at a line."""
    return source is not None and any(covers(call, line) for call in calls(source.tree, name))


def has_run(evidence: Evidence, source: Source, *, line: int) -> bool:
    """Return whether something was observed in the function, or the file's own code, that a line is in."""
    scope = scope_at(source, line)
    seen: Iterable[Moment[Any] | Operation] = (*evidence.first.moments, *evidence.operations)
    places = [place for place in seen if place.file == source.path]
    if isinstance(scope, ast.Module):
        is_script = any(word.endswith(Path(source.path).name) for word in evidence.first.argv)
        return is_script or any(place.function == "<module>" for place in places)
    return any(covers(scope, place.line) for place in places)


def scopes_of(tree: ast.Module) -> list[Scope]:
    """Return the file itself and all functions in it."""
    return [tree, *(node for node in walk(tree) if isinstance(node, Function))]


def own_nodes(scope: Scope) -> Iterator[ast.AST]:
    """Yield what stands in a function itself, in order, not in what is defined in it."""
    stack: list[ast.AST] = list(scope.body)
    while stack:
        node = stack.pop(0)
        yield node
        if not isinstance(node, Function | ast.ClassDef):
            stack = [*ast.iter_child_nodes(node), *stack]


def find_assignment(
    evidence: Evidence, attribute: str, *, holder: str | None = None, file: str | None = None
) -> Place | None:
    """Return the line that first assigns to an attribute: in its class if possible, else anywhere."""
    own = evidence.source(file)
    trees = [(own, class_in(own, holder))] if own is not None else []
    for source, tree in [*trees, *((source, source.tree) for source in evidence.sources)]:
        found = [statement for statement, _ in assignments(tree, attribute)]
        # A variable may have the same name, and become the attribute later.
        for statement in sorted(found, key=lambda statement: not _has_attribute(statement, attribute)):
            return source.at(statement.lineno)
    return None


def _has_attribute(statement: ast.stmt, name: str) -> bool:
    return any(
        isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == name
        for node in walk(statement)
    )
