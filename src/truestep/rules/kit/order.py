"""Order in source text: whether the order in which an expression gives its items decides anything further on.

Follows a value through assignments and loops of one file. If it is unsure, the answer is no.
"""

import ast
import copy
from collections.abc import Iterator
from typing import TypeGuard

from truestep.rules.evidence import Source
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import (
    Function,
    assignments,
    covers,
    innermost,
    name_of,
    nodes,
    only_call,
    pairs,
    scope_at,
)

_FREE = frozenset(
    (
        *("sorted", "natsorted", "set", "frozenset", "len", "any", "all", "max", "min", "sum", "fsum"),
        *("bool", "Counter", "print", "str", "repr", "isinstance", "type", "id", "issubset", "issuperset"),
        *("isdisjoint", "union", "intersection", "difference", "update", "discard", "remove", "add", "info"),
        *("debug", "warning", "error", "unlink", "rmtree", "makedirs", "mkdir", "exists", "copy", "move"),
    )
)
"""Calls whose result does not depend on the order of what they are given."""
_COUNTING = frozenset({"enumerate", "zip"})
_PASSING = _COUNTING | {"list", "tuple", "map", "filter", "iter", "chain", "islice", "deque", "tqdm"}
_LINING_UP = frozenset({"join", "fromkeys", "writelines", "sample", "choice", "choices", "shuffle"})
_KEEPING = frozenset({"append", "extend", "insert", "appendleft"})
_MAX_DEPTH = 12
_CARRYING = ast.IfExp | ast.BinOp | ast.Starred | ast.keyword | ast.List | ast.Tuple


class ValueFlow:
    """Follow values through one file."""

    def __init__(self, source: Source) -> None:
        self.tree = source.tree
        self._set: ast.AST | None = None
        self._parents = {child: node for node in walk(self.tree) for child in ast.iter_child_nodes(node)}
        self._defined = {node.name for node in walk(self.tree) if isinstance(node, Function | ast.ClassDef)}

    def decided_at(self, node: ast.AST, depth: int = 0) -> ast.AST | None:
        """Return where the order of an expression's items matters; None if nowhere, or if it is unknown."""
        parent = self._parents.get(node)
        if parent is None or depth > _MAX_DEPTH:
            return None
        found: ast.AST | None = None
        target = _target_of(parent)
        if target is not None:
            found = self._by_name(target, parent, depth)
        elif isinstance(parent, ast.Call):
            found = self._by_call(node, parent, depth)
        elif isinstance(parent, ast.comprehension) and parent.iter is node:
            found = self._by_comprehension(node, parent, depth)
        elif isinstance(parent, ast.For) and parent.iter is node:
            found = self._by_body(parent, depth)
        elif isinstance(parent, ast.Subscript):
            found = parent if parent.value is node else None
        elif isinstance(parent, _CARRYING) and node is not getattr(parent, "test", None):
            found = self.decided_at(parent, depth + 1)
        return found

    def set_decided_at(self, made: ast.AST) -> ast.AST | None:
        """Return the same for a set. A call that is given the set itself does not depend on its order."""
        flow = copy.copy(self)
        flow._set = made
        return flow.decided_at(made)

    def function_of(self, node: ast.AST) -> Function | None:
        """Return the function that a node stands in."""
        above: ast.AST | None = self._parents.get(node)
        while above is not None and not isinstance(above, Function):
            above = self._parents.get(above)
        return above

    def scope_of(self, node: ast.AST) -> ast.AST:
        """Return the function that a node stands in, or the file."""
        return self.function_of(node) or self.tree

    def values_of(self, name: ast.Name) -> Iterator[tuple[ast.expr, bool]]:
        """Yield what a name may stand for: an expression, and whether it is one of its items."""
        for node in walk(self.scope_of(name)):
            if isinstance(node, ast.Assign) and any(_is_name(one, name.id) for one in node.targets):
                yield node.value, False
            elif isinstance(node, ast.comprehension | ast.For) and _is_name(node.target, name.id):
                yield node.iter, True

    def _by_call(self, node: ast.AST, call: ast.Call, depth: int) -> ast.AST | None:
        if call.func is node:
            return None
        name = name_of(call.func)
        if name in _FREE:
            return None
        if name in _PASSING:
            found = self.decided_at(call, depth + 1)
            return call if found is not None else None
        if name in _KEEPING and isinstance(call.func, ast.Attribute):
            return self._by_name(call.func.value, call, depth)
        if name in self._defined:
            return None  # what a function of the script makes of it is not known
        is_used = name in _LINING_UP or not self._is_the_set(node)
        return call if is_used and isinstance(call.func, ast.Name | ast.Attribute) else None

    def _is_the_set(self, node: ast.AST) -> bool:
        """Whether an argument is the set that is followed, by itself or by a name."""
        given = node.value if isinstance(node, ast.keyword) else node
        values: list[ast.AST] = [given]
        if isinstance(given, ast.Name):
            values = [value for value, is_item in self.values_of(given) if not is_item]
        elif isinstance(given, ast.Attribute):
            values = [value for _, value in assignments(self.tree, given.attr)]
        return any(value is self._set for value in values)

    def _by_comprehension(self, node: ast.AST, parent: ast.comprehension, depth: int) -> ast.AST | None:
        whole = self._parents[parent]
        if isinstance(whole, ast.SetComp):
            return None
        if isinstance(whole, ast.DictComp):
            is_counted = isinstance(node, ast.Call) and name_of(node.func) in _COUNTING
            return node if is_counted else None
        return self.decided_at(whole, depth + 1)

    def _by_body(self, loop: ast.For, depth: int) -> ast.AST | None:
        for node in (inner for statement in loop.body for inner in walk(statement)):
            if (
                isinstance(node, ast.Call)
                and name_of(node.func) in _KEEPING
                and isinstance(node.func, ast.Attribute)
            ):
                found = self._by_name(node.func.value, node, depth)
                if found is not None:
                    return loop.iter
            if isinstance(node, ast.Assign) and _is_numbering(node):
                return loop.iter
        return None

    def _by_name(self, target: ast.AST, place: ast.AST, depth: int) -> ast.AST | None:
        """Return where the order of what a name holds matters. If it is sorted anywhere, it does not."""
        whole = self.tree if isinstance(target, ast.Attribute) else self.scope_of(place)
        uses = [node for node in walk(whole) if node is not target and _is_same(node, target)]
        for use in uses:
            parent = self._parents.get(use)
            if isinstance(parent, ast.Attribute) and parent.attr == "sort":
                return None
            if isinstance(parent, ast.Call) and name_of(parent.func) in ("sorted", "natsorted"):
                return None
        loads = (use for use in uses if isinstance(getattr(use, "ctx", None), ast.Load))
        found = (self.decided_at(use, depth + 2) for use in loads)
        return next((place for place in found if place is not None), None)


def maker_of(source: Source, line: int) -> int | None:
    """Return the one line that makes an object, for a line of its class's `__init__`; None if unknown."""
    met: set[str] = set()
    found: int | None = None
    while (name := _class_made_at(source.tree, line)) is not None and name not in met:
        met.add(name)
        found = only_call(source.tree, name)
        if found is None:
            return None
        line = found
    return found


def _class_made_at(tree: ast.Module, line: int) -> str | None:
    owner = innermost(tree, line, ast.ClassDef)
    makers = [] if owner is None else [item for item in owner.body if getattr(item, "name", "") == "__init__"]
    return owner.name if owner is not None and any(covers(item, line) for item in makers) else None


def built_for(source: Source, line: int) -> int | None:
    """Return the one line that calls the function in which a line makes the object that it returns."""
    function = scope_at(source, line)
    is_made = isinstance(function, Function) and function.lineno < line and _makes_result(function, line)
    return only_call(source.tree, function.name) if isinstance(function, Function) and is_made else None


def _makes_result(function: Function, line: int) -> bool:
    """Whether the line makes an object of a class, and the function returns it."""
    here = [node for node in walk(function) if covers(node, line)]
    if not any(isinstance(node, ast.Call) and (name_of(node.func) or "a")[0].isupper() for node in here):
        return False
    if any(isinstance(node, ast.Return) for node in here):
        return True
    made = {target.id for node in here for target, _ in pairs(node) if isinstance(target, ast.Name)}
    returned = [node.value for node in nodes(function, ast.Return)]
    return any(isinstance(value, ast.Name) and value.id in made for value in returned)


def _target_of(node: ast.AST) -> ast.Name | ast.Attribute | None:
    """Return the only name that a statement assigns to."""
    match node:
        case ast.Assign(targets=[ast.Name() | ast.Attribute() as target]):
            return target
        case ast.AnnAssign(target=ast.Name() | ast.Attribute() as target) | ast.NamedExpr(target=target):
            return target
    return None


def _is_name(node: ast.AST, name: str) -> bool:
    """Whether a target binds this name, alone or among others."""
    return any(isinstance(item, ast.Name) and item.id == name for item in walk(node))


def _is_same(node: ast.AST, target: ast.AST) -> TypeGuard[ast.Name | ast.Attribute]:
    if isinstance(target, ast.Attribute):
        return isinstance(node, ast.Attribute) and node.attr == target.attr
    return isinstance(target, ast.Name) and isinstance(node, ast.Name) and node.id == target.id


def _is_numbering(node: ast.Assign) -> bool:
    """Whether it is `table[item] = len(table)`, or counts in another way."""
    target = node.targets[0]
    return (
        isinstance(target, ast.Subscript)
        and isinstance(node.value, ast.Call)
        and name_of(node.value.func) in ("len", "next")
    )
