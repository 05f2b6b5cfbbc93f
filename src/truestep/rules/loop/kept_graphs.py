"""Losses are stored with their graphs: each step's graph stays in memory.

## What it finds
Losses from much earlier steps whose autograd graph is still in memory, because a list, a dictionary or a
running sum holds the tensor and not its value. The reported line is the statement that stores them, if it is
in the function that calls `backward`.

## Why it matters
Memory grows with every step by everything the graph holds, until the process is killed. A running sum even
becomes one graph over all steps.

## How to fix
Store the value: `total += loss.item()`, or `losses.append(loss.detach())` if waiting for a device would be
slow.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Edit, Evidence, Finding, Meta, Source
from truestep.rules.kit.edits import replace_node, statement_at, text_of
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import (
    Scope,
    arguments,
    covers,
    identifiers,
    name_of,
    nodes,
    own_nodes,
    scope_at,
    scopes_of,
)
from truestep.watch.evidence.facts.optimizing import GraphsKept
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="LOOP15",
    severity="error",
    needs=(BackwardPass,),
    fix="Store loss.item() or loss.detach() instead of the loss.",
)
_SAFE_METHODS = frozenset({"item", "detach", "tolist", "numpy", "backward", "data"})
_SAFE_FUNCTIONS = frozenset({"float", "int", "print", "str", "isfinite", "isnan", "len"})
_KEEPERS = frozenset({"append", "appendleft", "extend", "insert", "add", "put", "setdefault"})
_SUMS = frozenset({"sum", "fsum", "mean", "stack"})


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find losses that are kept, and the line that keeps them."""
    for moment in evidence.of(GraphsKept):
        facts = moment.facts
        file, line, _ = facts.backward_at
        source = evidence.source(file)
        keeper = None if source is None else _keeping_line(source, line, facts.is_part)
        yield Finding.at(
            facts.backward_at,
            "losses are stored with their graphs: memory grows with every step",
            line=keeper or line,
            step=facts.steps[0],
            evidence=f"the graphs of steps {', '.join(map(str, facts.steps))} (backward at line {line}) "
            f"were still in memory at step {facts.last_step}",
        )


def _passed_names(scope: Scope, line: int) -> set[str]:
    """Return the names in the call of `backward` at a line."""
    calls = [call for call in nodes(scope, ast.Call) if covers(call, line) and _is_backward(call)]
    return set().union(*map(identifiers, calls))


def _keeping_line(source: Source, line: int, is_part: bool) -> int | None:
    """Return the line that keeps what `backward` is called on, in the same function."""
    scope = scope_at(source, line)
    names = _passed_names(scope, line)
    if is_part:
        names |= _terms(scope, names)
    names = _with_aliases(scope, names) if names else names
    kept = (node for node in own_nodes(scope) if _keeps(node, names))
    return next((node.lineno for node in kept if isinstance(node, ast.stmt | ast.expr)), None)


def _terms(scope: Scope, names: set[str]) -> set[str]:
    """Return the names of what is added up to a loss."""
    found: set[str] = set()
    for node in own_nodes(scope):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if (
            not isinstance(node, ast.Assign | ast.AugAssign)
            or not {name_of(item) for item in targets} & names
        ):
            continue
        value = node.value
        is_sum = isinstance(value, ast.BinOp | ast.Name) or (
            isinstance(value, ast.Call) and name_of(value.func) in _SUMS
        )
        if is_sum or isinstance(node, ast.AugAssign):
            found |= identifiers(value)
    return found


def _is_backward(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr.endswith("backward")


def _with_aliases(scope: Scope, names: set[str]) -> set[str]:
    """Add names that are given something made from one of these, as `logs = {"loss": loss}`."""
    found = set(names)
    for node in own_nodes(scope):
        if isinstance(node, ast.Assign) and _has_bare(node.value, found):
            for target in node.targets:
                base = target.value if isinstance(target, ast.Subscript) else target
                if isinstance(base, ast.Name):
                    found.add(base.id)
        elif isinstance(node, ast.For | ast.comprehension) and _has_bare(node.iter, found):
            found |= identifiers(node.target)
    return found


def _keeps(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.AugAssign):
        return _has_bare(node.value, names)
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        if isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Constant):
            return _has_bare(node.value, names)
        is_sum = isinstance(node.value, ast.BinOp) and _has_bare(node.value, names)
        return is_sum and ast.unparse(target) in {ast.unparse(item) for item in walk(node.value)}
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _KEEPERS
        and any(_has_bare(item, names) for item in arguments(node))
    )


def _has_bare(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression holds one of the names with its graph."""
    if isinstance(node, ast.Name):
        return node.id in names
    return not _is_safe(node) and any(_has_bare(child, names) for child in ast.iter_child_nodes(node))


def _is_safe(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in _SAFE_METHODS
    if isinstance(node, ast.Call):
        return name_of(node.func) in _SAFE_METHODS | _SAFE_FUNCTIONS
    return isinstance(node, ast.Compare | ast.JoinedStr)


def make_edits(source: Source, finding: Finding) -> list[Edit]:
    """Keep the loss without its graph where it was added up or put into a list.

    It stays a tensor, so whatever reads it later still can. Nothing is changed if a gradient is taken of what
    is kept.
    """
    statement = statement_at(source, finding.line or 0)
    kept: ast.expr | None = None
    keeper: ast.expr | None = None
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        kept, keeper = statement.value, statement.target
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and call.func.attr in _KEEPERS and len(call.args) == 1:
            kept, keeper = call.args[0], call.func.value
    if not isinstance(kept, ast.Name | ast.Attribute) or _is_differentiated(source, keeper):
        return []
    return replace_node(source, kept, text=f"{text_of(source, kept)}.detach()")


def _is_differentiated(source: Source, keeper: ast.expr | None) -> bool:
    """Whether a gradient may be taken of what is kept, or of something that is made of it."""
    while isinstance(keeper, ast.Subscript):
        keeper = keeper.value
    name = name_of(keeper)
    if name is None:  # who reads it later is not known
        return True
    for scope in scopes_of(source.tree):
        found = _with_aliases(scope, {name})
        for call in own_nodes(scope):
            if isinstance(call, ast.Call) and (_is_backward(call) or name_of(call.func) == "grad"):
                inside = {name_of(item) for item in walk(call) if isinstance(item, ast.Name | ast.Attribute)}
                if inside & found:
                    return True
    return False
