"""Which names have a value at a statement, on every path that leads there.

Owns the walk through a scope's statements. A name is a variable or a dotted path such as `self.optimizer`.
"""

import ast
import builtins
from collections.abc import Iterable, Iterator, Sequence

from truestep.rules.kit.syntax import walk

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


def suites(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of statements that stand directly in a node, those of handlers and cases too."""
    for name in _BLOCKS:
        block = getattr(node, name, None)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            yield block
        elif isinstance(block, list):
            for part in block:
                yield from suites(part)


def parents_of(tree: ast.Module, statement: ast.stmt) -> list[ast.AST]:
    """Return the statements around one, the file first."""
    for node in walk(tree):
        for block in suites(node):
            if statement in block:
                above = parents_of(tree, node) if isinstance(node, ast.stmt) else []
                return [*above, node]
    return []


def turn_of(tree: ast.Module, statement: ast.stmt) -> ast.AST | None:
    """Return the innermost loop or function in which a statement runs; the file, if there is none."""
    above = reversed(parents_of(tree, statement))
    return next((node for node in above if isinstance(node, Loop | Function | ast.Module)), None)


def is_bound(tree: ast.Module, statement: ast.stmt, *, names: Iterable[str]) -> bool:
    """Return whether names have a value before a statement, the one that they have after it in the same turn.

    A name of an outer scope needs to be bound somewhere in it: when, is not known.
    """
    parents = parents_of(tree, statement)
    if not parents:
        return False
    scopes = [node for node in parents if isinstance(node, ast.Module | Function)]
    return all(_is_name_bound(scopes, statement, name, turn=turn_of(tree, statement)) for name in names)


def _is_name_bound(
    scopes: Sequence[ast.AST], statement: ast.stmt, name: str, *, turn: ast.AST | None
) -> bool:
    root = name.partition(".")[0]
    own = scopes[-1]
    stored = _stored(own)
    if root not in stored:
        outer = any(root in _stored(scope) for scope in scopes[:-1])
        return name not in stored and (outer or hasattr(builtins, root))
    needed = {root, name} & stored  # an attribute that is set elsewhere counts as bound
    before = _Walk(own, statement).names
    if before is None or not needed <= before:
        return False
    if not isinstance(turn, Loop | Function):
        return True
    later = (item for item in walk(turn) if isinstance(item, ast.stmt))
    return not any(item.lineno > statement.lineno and needed & set(_binds(item)) for item in later)


def _stored(scope: ast.AST) -> set[str]:
    """Return what a scope itself binds: its parameters and what its statements assign to."""
    found = set(_parameters(scope))
    declared: set[str] = set()
    stack: list[ast.AST] = list(getattr(scope, "body", []))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Global | ast.Nonlocal):
            declared |= set(node.names)
        if isinstance(node, ast.stmt):
            found |= set(_binds(node))
            stack += [item for block in suites(node) for item in block if not _is_scope(node)]
    return found - declared


def _is_scope(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef | Function)


def _parameters(scope: ast.AST) -> list[str]:
    if not isinstance(scope, Function):
        return []
    given = scope.args
    plain = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return [item.arg for item in (*plain, given.vararg, given.kwarg) if item is not None]


def _binds(statement: ast.stmt) -> Iterator[str]:
    """Yield what a statement binds, that of its blocks left out."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=given) | ast.ImportFrom(names=given):
            yield from ((item.asname or item.name).partition(".")[0] for item in given)
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            yield from (name for target in targets for name in _targets(target))
        case ast.AnnAssign(target=target, value=value) if value is not None:
            yield from _targets(target)
        case ast.AugAssign(target=target) | ast.For(target=target) | ast.AsyncFor(target=target):
            yield from _targets(target)
        case ast.With(items=items) | ast.AsyncWith(items=items):
            for item in items:
                yield from _targets(item.optional_vars) if item.optional_vars is not None else ()


def _targets(target: ast.expr) -> Iterator[str]:
    for node in walk(target):
        if isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield ast.unparse(node)


class _Walk:
    """The names that are bound before a statement of a scope; `names` is None if none of it was reached."""

    def __init__(self, scope: ast.AST, statement: ast.stmt) -> None:
        self._statement = statement
        self.names: set[str] | None = None
        for block in suites(scope):
            self._through(block, set(_parameters(scope)))

    def _through(self, block: Sequence[ast.stmt], bound: set[str]) -> set[str] | None:
        """Return what is bound after a block; None if nothing comes after it."""
        bound = set(bound)
        for item in block:
            if item is self._statement:
                self.names = set(bound)
            if isinstance(item, _LEAVES):
                return None
            after = self._after(item, bound)
            if after is None:
                return None
            bound = after
        return bound

    def _after(self, item: ast.stmt, bound: set[str]) -> set[str] | None:
        match item:
            case ast.If():
                return _common([self._through(item.body, bound), self._through(item.orelse, bound)])
            case ast.For() | ast.AsyncFor() | ast.While():
                self._through(item.body, bound | set(_binds(item)))
                self._through(item.orelse, bound)
                return bound
            case ast.With() | ast.AsyncWith():
                return self._through(item.body, bound | set(_binds(item)))
            case ast.Try():
                return self._after_try(item, bound)
            case ast.Match():
                for case in item.cases:
                    self._through(case.body, bound)
                return bound
        names = set(_binds(item))
        return bound - names if isinstance(item, ast.Delete) else bound | names

    def _after_try(self, item: ast.Try, bound: set[str]) -> set[str] | None:
        tried = self._through(item.body, bound)
        ways = [None if tried is None else self._through(item.orelse, tried)]
        ways += [self._through(handler.body, bound) for handler in item.handlers]
        last = self._through(item.finalbody, bound)
        common = _common(ways)
        return None if last is None or common is None else common | last


def _common(ways: Sequence[set[str] | None]) -> set[str] | None:
    """Return what is bound on all ways that lead on; None if none does."""
    reached = [way for way in ways if way is not None]
    return set.intersection(*reached) if reached else None
