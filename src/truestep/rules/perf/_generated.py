"""Batches that a generator function of the script makes: how long the loop waits for each.

Owns finding such loops in the syntax, and the time between a step and the next forward pass in them.
"""

import ast
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from truestep.rules import Evidence, Source
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import Function, name_of
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import GradientsZeroed, OptimizerStep, SchedulerStep
from truestep.watch.evidence.facts.passes import BackwardPass, ForwardPass, ModeSet

Waits = list[tuple[float, float]]
_WRAPPERS = ("enumerate", "tqdm", "trange", "islice", "zip", "iter")
_BEFORE = (OptimizerStep, GradientsZeroed, SchedulerStep)
_MOMENTS = (*_BEFORE, ForwardPass, BackwardPass, ModeSet)
_SLOW = ("sleep", "save", "savefig")


def generated(evidence: Evidence, *, first: int) -> Iterator[tuple[Moment[Any], int, Waits]]:
    """Yield loops over a generator: a forward pass, the loop's line, and each wait with its step's time."""
    by_line: dict[tuple[str | None, int | None], list[tuple[Moment[Any], Moment[Any]]]] = {}
    for before, after in pairwise(evidence.of(*_MOMENTS)):
        is_training = (
            isinstance(after.facts, ForwardPass) and after.facts.is_training and after.facts.is_grad_enabled
        )
        is_next = after.step - before.step <= 1  # between windows nothing is seen of a loop
        if is_training and is_next and isinstance(before.facts, _BEFORE) and after.step >= first:
            by_line.setdefault((after.file, after.line), []).append((before, after))
    for (file, line), pairs in by_line.items():
        source = evidence.source(file)
        if source is None or line is None or {before.file for before, _ in pairs} != {file}:
            continue
        last = {before.line for before, _ in pairs}
        loop = _loop_at(source, line) if len(last) == 1 else None
        if loop is not None and not _does_more(source, loop, line, last.pop() or 0):
            gaps = [(one.at_s + one.took_s, two.at_s) for one, two in pairs]
            follow = [after.step - before.step <= 1 for (_, before), (_, after) in pairwise(pairs)]
            spans = [(two - one, later - one) for (one, two), (later, _) in pairwise(gaps)]
            waits = [span for span, is_next in zip(spans, follow, strict=True) if is_next]
            yield pairs[0][1], loop.lineno, waits


def _loop_at(source: Source, line: int) -> ast.For | None:
    """Return the innermost loop around a line, if it goes over what a generator of the script yields."""
    loops = [node for node in walk(source.tree) if isinstance(node, ast.For | ast.While)]
    around = [node for node in loops if node.lineno < line <= (node.end_lineno or 0)]
    loop = max(around, key=lambda node: node.lineno, default=None)
    if not isinstance(loop, ast.For):
        return None
    given: ast.expr = loop.iter
    while isinstance(given, ast.Call) and name_of(given.func) in _WRAPPERS and given.args:
        given = given.args[0]
    made = [given] if isinstance(given, ast.Call) else []
    if isinstance(given, ast.Name):
        assigned = [node for node in walk(source.tree) if isinstance(node, ast.Assign)]
        named = [node for node in assigned if any(_is_name(item, given.id) for item in node.targets)]
        made = [node.value for node in named if isinstance(node.value, ast.Call)]
    yielding = {item.name for item in _functions(source) if _yields(item)}
    return loop if made and all(name_of(call.func) in yielding for call in made) else None


def _does_more(source: Source, loop: ast.For, line: int, last: int) -> bool:
    """Whether the loop itself may do other work between a step and the next forward pass."""
    own = {item.name for item in _functions(source)} | set(_SLOW)
    calls = [node for part in loop.body for node in walk(part) if isinstance(node, ast.Call)]
    return any(
        name_of(call.func) in own or isinstance(call.func, ast.Subscript)
        for call in calls
        if call.lineno < line or call.lineno > last
    )


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _functions(source: Source) -> list[Function]:
    return [node for node in walk(source.tree) if isinstance(node, Function)]


def _yields(function: Function) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in walk(function))
