"""A metric is judged in the wrong direction: the worst model is kept, or progress lowers the rate.

## What it finds
`ReduceLROnPlateau` with `mode="min"`, its default, that is given an accuracy, or with `mode="max"` that is
given a loss. A best value that starts at infinity and is replaced by larger ones only, or the other way
round: it is never replaced. A comparison that keeps the weights of the highest loss or of the lowest
accuracy.

## Why it matters
The learning rate falls because the model improves. Early stopping ends the run at its best moment, and the
saved "best" checkpoint is the first or the worst one.

## How to fix
Losses and errors improve downwards (`<`, `mode="min"`), accuracies and scores upwards (`>`, `mode="max"`).
"""

import ast
import re
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.kit.grouping import grouped
from truestep.rules.kit.where import (
    assignments,
    calls,
    covers,
    has_run,
    innermost,
    name_of,
    nodes,
    pairs,
    scope_at,
)
from truestep.watch.evidence.facts.optimizing import MetricGiven, OptimizerStep, SchedulerMade

RULE = Meta(
    code="LOOP20",
    severity="error",
    needs=(OptimizerStep,),
    fix='Compare losses with < and scores with >; give ReduceLROnPlateau mode="max" for scores.',
)
_FALLS = re.compile(r"(?<![a-z])(loss(es)?|err(or)?s?|mse|mae|rmse|ppl|perplexity|nll|cer|wer)(?![a-z])")
_RISES = re.compile(r"(?<![a-z])(acc(uracy)?|f1|auc|auroc|iou|miou|dice|bleu|recall|precision|r2)(?![a-z])")
_UNCLEAR = re.compile(r"neg|minus|inverse|worst|hard|likelihood|log_?prob|elbo|delta|diff|gap|ratio|margin")
_EITHER_WAY = re.compile(
    r"\bmode\b|minimi|maximi|greater|higher|lower_|larger|smaller|sign\b|direction|monitor"
)
_KEEPING = re.compile(r"\b(save\w*|state_dict)\(|deepcopy\([^)]*(model|net|weight|policy|encoder|classifier)")
_OTHER = {"min": "max", "max": "min"}
_SIZES = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_LEAST_CALLS = 4


class _Kept(NamedTuple):
    """A condition that compares a value with the best one, and replaces that in one of its branches."""

    condition: ast.If
    test: ast.Compare
    value: ast.expr
    best: ast.expr
    body: list[ast.stmt]
    way: str
    """Which values replace the best one: larger ones (`max`) or smaller ones (`min`)."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find metrics that are judged the wrong way round."""
    yield from _check_schedulers(evidence)
    for source in evidence.sources:
        found = list(_kept_values(source))
        for kept in found:
            is_either = any(
                ast.dump(one.best) == ast.dump(kept.best) and one.way != kept.way for one in found
            )
            if not is_either and _is_used(evidence, source, kept.condition.lineno):
                yield from _check_comparison(source, kept)


def _check_schedulers(evidence: Evidence) -> Iterator[Finding]:
    for number, moments in grouped(evidence.of(MetricGiven), "facts.scheduler").items():
        first, values = moments[0], [moment.facts.value for moment in moments]
        source, mode = evidence.source(first.file), first.facts.mode
        tree = ast.Module(body=[], type_ignores=[]) if source is None else source.tree
        given = [call.args[0] for call in calls(tree, "step") if covers(call, first.line) and call.args]
        if source is None or len(given) != 1 or len(values) < _LEAST_CALLS or min(values) < 0:
            continue
        direction, name = _direction(source, given[0]), ast.unparse(given[0])
        has_improved = values[-1] > values[0] if direction == "max" else values[-1] < values[0]
        if direction != _OTHER.get(mode) or not has_improved:
            continue  # a metric that did not improve: the schedule may have done what it should
        made = next((one for one in evidence.of(SchedulerMade) if one.facts.scheduler == number), first)
        yield Finding.at(
            made,
            f'ReduceLROnPlateau has mode="{mode}" and is given {name}, which improves the other way',
            evidence=f"{name} improved from {values[0]:.3g} to {values[-1]:.3g} in {len(values)} calls; the "
            f'scheduler takes that for a step back, expected mode="{direction}"',
            fix=f'Create it with mode="{direction}".',
        )


def _check_comparison(source: Source, kept: _Kept) -> Iterator[Finding]:
    name, text, way = str(name_of(kept.best)), ast.unparse(kept.test), kept.way
    start = "inf" if way == "max" else "-inf"
    if _starts(source, kept) == {start}:
        is_else = kept.body is not kept.condition.body
        yield Finding.at(
            source.at(kept.condition.lineno),
            f"`{text}` is {'always' if is_else else 'never'} true: {name} starts at {start}",
            evidence=f"{name} starts at {start} and is replaced only by "
            f"{'larger' if way == 'max' else 'smaller'} values, so it never changes",
        )
        return
    ways = {direction_of(name), _direction(source, kept.value)} - {None}
    if ways == {_OTHER[way]} and _KEEPING.search("\n".join(map(ast.unparse, kept.body))):
        better, worse = ("lower", "higher") if way == "max" else ("higher", "lower")
        yield Finding.at(
            source.at(kept.condition.lineno),
            f"`{text}` keeps the model with the {'highest' if way == 'max' else 'lowest'} metric",
            evidence=f"{ast.unparse(kept.value)} is better when it is {better}, and the weights are kept "
            f"when it is {worse} than before",
        )


def direction_of(text: str) -> str | None:
    """Return whether a metric of this name improves by falling (`min`) or by rising (`max`)."""
    words = text.lower()
    falls, rises = (bool(names.search(words.replace("_", " "))) for names in (_FALLS, _RISES))
    return None if falls == rises or _UNCLEAR.search(words) else ("min" if falls else "max")


def _direction(source: Source, node: ast.expr, *, is_followed: bool = True) -> str | None:
    """Return which way a value improves, by its name or that of what it is assigned from."""
    match node:
        case (
            ast.UnaryOp(op=ast.USub(), operand=inner)
            | ast.BinOp(left=ast.Constant(), op=ast.Sub(), right=inner)
        ):
            return _OTHER.get(_direction(source, inner, is_followed=is_followed) or "")
        case (
            ast.Call(func=ast.Attribute(value=inner, attr="item"))
            | ast.Call(func=ast.Name(id="float"), args=[inner])
        ):
            return _direction(source, inner, is_followed=is_followed)
        case ast.Name() | ast.Attribute() | ast.Subscript(slice=ast.Constant()):
            values = [value for _, value in assignments(scope_at(source, node.lineno), name_of(node) or "")]
            found = (
                _direction(source, values[0], is_followed=False) if is_followed and len(values) == 1 else None
            )
            is_turned = any(isinstance(getattr(value, "op", None), ast.USub | ast.Sub) for value in values)
            if found:
                return found
            return None if is_turned else direction_of(ast.unparse(node))
    return None


def _kept_values(source: Source) -> Iterator[_Kept]:
    """Yield the conditions that compare a value with the best one and then replace that."""
    for node in nodes(source.tree, ast.If):
        is_either = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or)
        test = node.test.values[-1] if isinstance(node.test, ast.BoolOp) and is_either else node.test
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], _SIZES):
            continue
        left, right = (_without_margin(side) for side in (test.left, test.comparators[0]))
        for best, value, body in product((left, right), (left, right), (node.body, node.orelse)):
            replaced = [tuple(map(ast.unparse, pair)) for statement in body for pair in pairs(statement)]
            is_best = best is not value and "best" in str(name_of(best)).lower()
            if is_best and (ast.unparse(best), ast.unparse(value)) in replaced:
                is_greater = isinstance(test.ops[0], ast.Gt | ast.GtE) == (value is left)
                way = "max" if is_greater == (body is node.body) else "min"
                yield _Kept(node, test, value, best, body, way)


def _without_margin(side: ast.expr) -> ast.expr:
    """Return `best` of `best - min_delta`."""
    is_sum = isinstance(side, ast.BinOp) and isinstance(side.op, ast.Add | ast.Sub)
    return side.left if isinstance(side, ast.BinOp) and is_sum and name_of(side.left) else side


def _is_used(evidence: Evidence, source: Source, line: int) -> bool:
    """Whether the function around a line has run, or its class is used, and works one way only."""
    holder = innermost(source.tree, line, ast.ClassDef)
    scope = holder or scope_at(source, line)
    if not isinstance(scope, ast.Module) and _EITHER_WAY.search(ast.unparse(scope)):
        return False
    return has_run(evidence, source, line=line) or (
        holder is not None and bool(calls(source.tree, holder.name))
    )


def _starts(source: Source, kept: _Kept) -> set[str | None]:
    """Return what the best value is before the condition replaces it, wherever that is set."""
    own = set(map(id, nodes(kept.condition, ast.AST)))
    others = [node for node in nodes(source.tree, ast.AST) if id(node) not in own]
    return {
        _start(value)
        for node in others
        for target, value in pairs(node)
        if name_of(target) == name_of(kept.best)
    }


def _start(value: ast.expr) -> str | None:
    """Return `inf` or `-inf` for a first value that nothing exceeds; None for others."""
    text = re.sub(r"[\s\"'()]|float|math|np|numpy|torch|\.", "", ast.unparse(value).lower())
    return text.removeprefix("+") if text in ("inf", "+inf", "-inf", "infinity") else None
