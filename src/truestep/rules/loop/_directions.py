"""Which way a metric improves, read from its name: where it is compared, or where a function is given it.

Owns following a value through negations, assignments and calls. Where it cannot tell, it says no.
"""

import ast
import re
from collections.abc import Sequence
from typing import NamedTuple

from truestep.rules import Source
from truestep.rules.kit.where import Function, assignments, bind, defined, name_of, nodes, scope_at

UNCLEAR = "unclear"
"""What a value may be is written down, and it is not plain which way that improves."""
_FALLS = re.compile(r"(?<![a-z])(loss(es)?|err(or)?s?|mse|mae|rmse|ppl|perplexity|nll|cer|wer)(?![a-z])")
_RISES = re.compile(r"(?<![a-z])(acc(uracy)?|f1|auc|auroc|iou|miou|dice|bleu|recall|precision|r2)(?![a-z])")
_UNCLEAR = re.compile(
    r"neg|minus|inverse|inverted|worst|hard|likelihood|log_?prob|elbo|delta|diff|gap|ratio|margin"
)
_EITHER_WAY = re.compile(
    r"\bmode\b|minimi|maximi|greater|higher|lower_|larger|smaller|sign\b|direction|monitor"
)
_PLAIN_METHODS = frozenset({"item", "detach", "cpu", "numpy", "float", "double", "mean", "sum", "tolist"})
_PLAIN_FUNCTIONS = frozenset({"float", "round", "mean", "sum", "fsum", "average", "nanmean"})
_NAMED = ast.Name | ast.Attribute | ast.Subscript
_MAX_DEPTH = 4
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def direction_of(text: str) -> str | None:
    """Return whether a metric of this name improves by falling (`min`) or by rising (`max`)."""
    words = text.lower().replace("_", " ")
    if _UNCLEAR.search(text.lower()):
        return None
    falls, rises = bool(_FALLS.search(words)), bool(_RISES.search(words))
    return None if falls == rises else ("min" if falls else "max")


class Way(NamedTuple):
    """Which way a value improves, and the name that shows it."""

    direction: str | None
    """`min` or `max`; `UNCLEAR` if it may be either, None if nothing is known of it."""
    name: str = ""


class Metrics:
    """The values of the user's files, and which way each improves."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def way_of(self, source: Source, node: ast.expr, *, depth: int = 0) -> Way:
        """Return which way a value improves."""
        bare, is_negated = _bare(node)
        found = self._way_of_bare(source, bare, depth)
        if not is_negated or found.direction in (None, UNCLEAR):
            return found
        return Way("max" if found.direction == "min" else "min", f"-{found.name}")

    def _way_of_bare(self, source: Source, node: ast.expr, depth: int) -> Way:
        text = ast.unparse(node)
        if _UNCLEAR.search(text.lower()) or _is_turned(node):
            return Way(UNCLEAR)
        direction = direction_of(text)
        values = list(assignments(source.tree, name_of(node) or ""))
        if direction is not None:
            return Way(UNCLEAR) if any(_is_changed(*pair) for pair in values) else Way(direction, text)
        if not isinstance(node, ast.Name) or depth > _MAX_DEPTH:
            return Way(None)
        scope = scope_at(source, node.lineno)
        own = [pair for pair in values if scope_at(source, pair[0].lineno) is scope]
        if isinstance(scope, Function) and node.id in _parameters(scope):
            return Way(UNCLEAR) if own else self._way_as_given(source, scope, node.id, depth)
        return _only([self._way_as_set(source, pair, depth) for pair in own])

    def _way_as_set(self, source: Source, pair: tuple[ast.stmt, ast.expr], depth: int) -> Way:
        statement, value = pair
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if not targets or not all(isinstance(target, ast.Name) for target in targets):
            return Way(None)
        if isinstance(_bare(value)[0], _NAMED):
            return self.way_of(source, value, depth=depth + 1)
        return Way(UNCLEAR if _is_turned(value) else None)

    def _way_as_given(  # limits: private to this module
        self, source: Source, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, depth: int
    ) -> Way:
        """Return the way of a parameter: all calls must give it something that improves one way."""
        holder = _class_around(source, function)
        if _EITHER_WAY.search(ast.unparse(holder or function)):
            return Way(UNCLEAR)
        ways = []
        for other, call in self.calls_of(source, function):
            is_plain = not any(isinstance(item, ast.Starred) for item in call.args)
            given = bind(function, call).get(name) if is_plain else None
            is_named = given is not None and isinstance(_bare(given)[0], _NAMED)
            ways.append(
                self.way_of(other, given, depth=depth + 1) if given is not None and is_named else Way(None)
            )
        return _only(ways)

    def calls_of(
        self, source: Source, function: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> list[tuple[Source, ast.Call]]:
        """Return all calls of a function, or of a method on objects that the files make of its class."""
        holder = _class_around(source, function)
        name = holder.name if holder is not None else function.name
        classes = [node for other in self._sources for node in nodes(other.tree, ast.ClassDef)]
        same = [node for other in self._sources for node in defined(other.tree, name, *_DEFINITIONS)]
        if len(same) != 1 or any(name in map(name_of, node.bases) for node in classes):
            return []
        names = {name} if holder is None else self._names_of_objects(name)
        method = None if holder is None else function.name
        found = [(other, call) for other in self._sources for call in nodes(other.tree, ast.Call)]
        return [(other, call) for other, call in found if name_of(_callee(call, method)) in names]

    def _names_of_objects(self, name: str) -> set[str]:
        """Return the names that hold objects of a class, and nothing else."""
        kept: dict[str, list[bool]] = {}
        for source in self._sources:
            for node in nodes(source.tree, ast.Assign):
                is_made = isinstance(node.value, ast.Call) and name_of(node.value.func) == name
                for target in node.targets:
                    kept.setdefault(name_of(target) or "", []).append(is_made)
        return {held for held, made in kept.items() if held and all(made)}


def _only(ways: list[Way]) -> Way:
    """Return the way on which all agree."""
    directions = {way.direction for way in ways}
    return ways[0] if len(directions) == 1 else Way(UNCLEAR if directions else None)


def _callee(call: ast.Call, method: str | None) -> ast.expr | None:
    """Return what names the function, or the object whose method is called."""
    if method is None:
        return call.func if isinstance(call.func, ast.Name) else None
    if method == "__call__":
        return call.func
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == method
    return call.func.value if is_method and isinstance(call.func, ast.Attribute) else None


def _class_around(source: Source, function: ast.AST) -> ast.ClassDef | None:
    return next((node for node in nodes(source.tree, ast.ClassDef) if function in node.body), None)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return [item.arg for item in (*function.args.posonlyargs, *function.args.args)]


def _bare(node: ast.expr) -> tuple[ast.expr, bool]:
    """Return a value without `float`, `.item()` and the like, and without a minus; whether it had one."""
    is_negated = False
    while True:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            node, is_negated = node.operand, not is_negated
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and _is_one(node.left):
            node, is_negated = node.right, not is_negated
        elif isinstance(node, ast.Call) and (inner := _inner(node)) is not None:
            node = inner
        else:
            return node, is_negated


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in (1, 100)


def _inner(call: ast.Call) -> ast.expr | None:
    """Return what a call only reads or averages."""
    if name_of(call.func) in _PLAIN_FUNCTIONS and call.args:
        return call.args[0]
    is_plain = isinstance(call.func, ast.Attribute) and call.func.attr in _PLAIN_METHODS
    return call.func.value if is_plain and isinstance(call.func, ast.Attribute) else None


def _is_turned(node: ast.expr) -> bool:
    """Whether a value is a difference, or the opposite of something."""
    node, is_negated = _bare(node)
    if is_negated or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)):
        return True
    if isinstance(node, ast.IfExp):
        return _is_turned(node.body) or _is_turned(node.orelse)
    is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult)
    is_turned_round = isinstance(node, ast.BinOp) and is_sum and _is_turned(node.right)
    is_share = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
    return is_turned_round or (isinstance(node, ast.BinOp) and (is_sum or is_share) and _is_turned(node.left))


def _is_changed(statement: ast.stmt, value: ast.expr) -> bool:
    """Whether an assignment may turn the direction of a value round."""
    return (isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Sub)) or _is_turned(value)


def is_maximised(source: Source, name: str | None) -> bool:
    """Whether a script looks for the largest value on purpose: `maximize=True`, or `(-loss).backward()`."""
    for call in nodes(source.tree, ast.Call):
        if any(item.arg == "maximize" and not _is_false(item.value) for item in call.keywords):
            return True
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            bare, is_negated = _bare(call.func.value)
            if is_negated and name_of(bare) == name:
                return True
    return False


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False
