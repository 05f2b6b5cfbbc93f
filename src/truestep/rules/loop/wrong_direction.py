"""A metric is judged in the wrong direction: the worst model is kept, or progress lowers the rate.

## What it finds
`ReduceLROnPlateau` with `mode="min"`, its default, that is given an accuracy, or with `mode="max"` that is
given a loss. A best value that starts at infinity and is replaced by larger ones only, or the other way
round: it is never replaced. A comparison that keeps the weights of the highest loss or of the lowest
accuracy, also in a class for early stopping that is given the metric as `value`, or by a flag such as
`is_best`.

## Why it matters
The learning rate falls because the model improves. Early stopping ends the run at its best moment, and the
saved "best" checkpoint is the first or the worst one.

## How to fix
Losses and errors improve downwards (`<`, `mode="min"`), accuracies and scores upwards (`>`, `mode="max"`).
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.kit.grouping import grouped
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import (
    Function,
    arguments,
    assignments,
    calls,
    covers,
    has_run,
    name_of,
    own_nodes,
    pairs,
    scope_at,
    scopes_of,
)
from truestep.rules.loop._directions import Metrics, direction_of, is_maximised
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import MetricGiven, OptimizerStep, SchedulerMade

RULE = Meta(
    code="LOOP20",
    severity="error",
    needs=(OptimizerStep,),
    fix='Compare losses with < and scores with >; give ReduceLROnPlateau mode="max" for scores.',
)
_KEEPING = frozenset({"save", "state_dict", "save_checkpoint", "save_model", "save_pretrained"})
_WEIGHTS = re.compile(r"model|net|state|weight|param|policy|agent|actor|critic|encoder|classifier|student")
_COUNTER = re.compile(r"patien|wait|bad|stale|no_improv|since|stall|counter|count")
_LARGE, _LEAST_CALLS = 1e6, 4


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """A condition that compares a value with the best one, and replaces that in one of its branches."""

    condition: ast.If
    test: ast.Compare
    body: list[ast.stmt]
    value: ast.expr
    best: ast.expr

    @property
    def is_else(self) -> bool:
        """Whether the best value is replaced where the comparison does not hold."""
        return self.body is not self.condition.body

    @property
    def way(self) -> str:
        """Which values replace the best one: larger ones (`max`) or smaller ones (`min`)."""
        is_left = any(node is self.value for node in walk(self.test.left))
        is_greater = isinstance(self.test.ops[0], ast.Gt | ast.GtE) == is_left
        return "max" if is_greater != self.is_else else "min"


def is_observed(evidence: Evidence) -> bool:
    """Whether a scheduler was given a metric, or a best value is kept."""
    return bool(evidence.of(MetricGiven)) or any(_kept_values(source) for source in evidence.sources)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find metrics that are judged the wrong way round."""
    yield from _check_schedulers(evidence)
    metrics = Metrics(evidence.sources)
    for source in evidence.sources:
        found = _kept_values(source)
        for kept in found:
            if _has_run(evidence, source, kept, metrics):
                yield from _check_comparison(source, kept, metrics, found)


def _has_run(  # limits: private to this module
    evidence: Evidence, source: Source, kept: _Kept, metrics: Metrics
) -> bool:
    """Whether something was observed in the function of a condition, or in one that calls it."""
    if has_run(evidence, source, line=kept.condition.lineno):
        return True
    scope = scope_at(source, kept.condition.lineno)
    called = metrics.calls_of(source, scope) if isinstance(scope, Function) else []
    return any(has_run(evidence, other, line=call.lineno) for other, call in called)


def _check_schedulers(evidence: Evidence) -> Iterator[Finding]:
    given = grouped(evidence.of(MetricGiven), "facts.scheduler")
    for number, moments in given.items():
        mode, name = moments[0].facts.mode, _metric_name(evidence, moments[0])
        values = [moment.facts.value for moment in moments]
        direction = direction_of(name) if name else None
        if direction is None or direction == mode or len(values) < _LEAST_CALLS or min(values) < 0:
            continue
        sign = 1 if direction == "max" else -1
        if sign * (values[-1] - values[0]) <= 0:
            continue  # the metric did not improve: the schedule may have done what it should
        made = next((one for one in evidence.of(SchedulerMade) if one.facts.scheduler == number), moments[0])
        yield Finding(
            message=f'ReduceLROnPlateau has mode="{mode}" and is given {name}, which improves the other way',
            file=made.file,
            line=made.line,
            step=moments[0].step + 1,
            evidence=f"{name} improved from {values[0]:.3g} to {values[-1]:.3g} in {len(values)} calls; the "
            f'scheduler takes that for a step back, expected mode="{direction}"',
            fix=f'Create it with mode="{direction}".',
        )


def _metric_name(evidence: Evidence, moment: Moment[MetricGiven]) -> str | None:
    """Return the name of what is given, if it is a plain name or one of its items."""
    source = evidence.source(moment.file)
    if source is None:
        return None
    found = [call for call in calls(source.tree, "step") if covers(call, moment.line) and call.args]
    names = [_plain_name(call.args[0]) for call in found]
    name = names[0] if len(names) == 1 else None
    if name is None or any(_is_negated(value) for _, value in assignments(source.tree, name)):
        return None
    return name


def _plain_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item":
        return _plain_name(node.func.value)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return name_of(node)


def _is_negated(value: ast.expr) -> bool:
    """Whether a value is the opposite of something: `-accuracy`, or `1 - accuracy`."""
    nodes = walk(value)
    return any(
        (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub))
        or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub))
        for node in nodes
    )


def _kept_values(source: Source) -> list[_Kept]:
    """Return the conditions that compare a value with the best one and then replace that."""
    found = []
    for node in walk(source.tree):
        test = _comparison(node.test) if isinstance(node, ast.If) else None
        if not isinstance(node, ast.If) or test is None:
            continue
        sides = (_without_margin(test.left), _without_margin(test.comparators[0]))
        for best, value in (sides, sides[::-1]):
            is_best = "best" in str(name_of(best)).lower()
            found += [
                _Kept(condition=node, test=test, body=body, value=value, best=best)
                for body in (node.body, node.orelse)
                if is_best and _replaces(body, best, value)
            ]
    return [*found, *_flagged_values(source)]


def _flagged_values(source: Source) -> Iterator[_Kept]:
    """Yield comparisons that a flag holds, `is_best = loss < best`, as conditions of what it decides."""
    for scope in scopes_of(source.tree):
        nodes = list(own_nodes(scope))
        flags = [node for node in nodes if isinstance(node, ast.Assign) and _comparison(node.value)]
        for node in flags:
            test, flag = _comparison(node.value), name_of(node.targets[0])
            if test is None or flag is None or len(list(assignments(scope, flag))) != 1:
                continue
            body = [statement for later in nodes for statement in _guarded(later, flag)]
            condition = ast.copy_location(ast.If(test=test, body=body, orelse=[]), node)
            sides = (_without_margin(test.left), _without_margin(test.comparators[0]))
            for best, value in (sides, sides[::-1]):
                if "best" not in str(name_of(best)).lower():
                    continue
                kept = _Kept(condition=condition, test=test, body=body, value=value, best=best)
                if _replaces(body, best, value) or any(_follows(other, kept) for other in nodes):
                    yield kept


def _guarded(node: ast.AST, flag: str) -> list[ast.stmt]:
    """Return what is done where a flag holds: under it, or in a call that is given it."""
    if isinstance(node, ast.If) and name_of(node.test) == flag:
        return node.body
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return []
    return [node] if flag in map(name_of, arguments(node.value)) else []


def _follows(node: ast.AST, kept: _Kept) -> bool:
    """Whether it is `best = max(value, best)`, or with `min`, in the way of the comparison."""
    names = {ast.unparse(kept.best), ast.unparse(kept.value)}
    return any(
        ast.unparse(target) == ast.unparse(kept.best)
        and isinstance(value, ast.Call)
        and name_of(value.func) == kept.way
        and {ast.unparse(item) for item in value.args} == names
        for target, value in pairs(node)
    )


def _without_margin(side: ast.expr) -> ast.expr:
    """Return `best` of `best - min_delta`."""
    is_sum = isinstance(side, ast.BinOp) and isinstance(side.op, ast.Add | ast.Sub)
    return side.left if isinstance(side, ast.BinOp) and is_sum and name_of(side.left) else side


def _comparison(test: ast.expr) -> ast.Compare | None:
    """Return the comparison by size that a condition makes, alone or after `best is None or`."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) and len(test.values) == 2:
        first, test = test.values
        if not isinstance(first, ast.Compare) or not isinstance(first.ops[0], ast.Is):
            return None
    is_size = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    return test if isinstance(test, ast.Compare) and is_size and len(test.ops) == 1 else None


def _replaces(body: list[ast.stmt], best: ast.expr, value: ast.expr) -> bool:
    names = (ast.unparse(best), ast.unparse(value))
    replaced = [pair for statement in body for pair in pairs(statement)]
    return any((ast.unparse(target), ast.unparse(given)) == names for target, given in replaced)


def _starts(source: Source, condition: ast.If, best: ast.expr) -> set[str | None]:
    """Return what the best value is before the condition replaces it, wherever that is set."""
    own = {id(node) for node in walk(condition)}
    return {
        _start(value)
        for node in walk(source.tree)
        if id(node) not in own
        for target, value in pairs(node)
        if name_of(target) == name_of(best)
    }


def _check_comparison(  # limits: private to this module
    source: Source, kept: _Kept, metrics: Metrics, others: list[_Kept]
) -> Iterator[Finding]:
    name, text, way = str(name_of(kept.best)), ast.unparse(kept.test), kept.way
    starts = _starts(source, kept.condition, kept.best)
    if starts == {"inf" if way == "max" else "-inf"}:
        side = "infinity" if way == "max" else "minus infinity"
        yield Finding(
            message=f"`{text}` is {'always' if kept.is_else else 'never'} true: {name} starts at {side}",
            file=source.path,
            line=kept.condition.lineno,
            evidence=f"{name} starts at {side} and is replaced only by "
            f"{'larger' if way == 'max' else 'smaller'} values, so it never changes",
        )
        return
    if any(name_of(one.best) == name and one.way != way for one in others):
        return  # one branch for each way
    value = metrics.way_of(source, kept.value)
    ways = {direction_of(name), value.direction} - {None}
    is_named = direction_of(name) or direction_of(ast.unparse(kept.value))
    if ways != {"min" if way == "max" else "max"}:
        return
    if not _keeps_model(kept.body) or is_maximised(source, name_of(kept.value)):
        return
    compared = ast.unparse(kept.value)
    shown = compared if not value.name or value.name == compared else f"{compared}, which is {value.name},"
    better, worse = ("lower", "higher") if way == "max" else ("higher", "lower")
    yield Finding(
        message=f"`{text}` keeps the model with the {'highest' if way == 'max' else 'lowest'} "
        f"{name if is_named else value.name}",
        file=source.path,
        line=kept.condition.lineno,
        evidence=f"{shown} is better when it is {better}, and the weights are kept when it is {worse} than "
        "before",
    )


def _start(value: ast.expr) -> str | None:
    """Return `inf` or `-inf` for a first value that nothing exceeds; None for others."""
    text = ast.unparse(value).replace(" ", "").replace('"', "'").lower()
    if re.fullmatch(r"(float\('\+?inf(inity)?'\)|(math|np|numpy|torch)\.inf)", text):
        return "inf"
    if re.fullmatch(r"(float\('-inf(inity)?'\)|-float\('inf'\)|-(math|np|numpy|torch)\.inf)", text):
        return "-inf"
    if isinstance(value, ast.Constant) and isinstance(value.value, int | float) and value.value >= _LARGE:
        return "inf"
    return None


def _keeps_model(body: list[ast.stmt]) -> bool:
    """Whether weights are kept or a counter of patience starts over: else anything may be looked for."""
    for statement in body:
        for target, value in pairs(statement):
            is_zero = isinstance(value, ast.Constant) and not value.value
            if is_zero and _COUNTER.search(str(name_of(target)).lower()):
                return True
        found = [node for node in walk(statement) if isinstance(node, ast.Call)]
        if any(name_of(call.func) in _KEEPING or _copies_weights(call) for call in found):
            return True
    return False


def _copies_weights(call: ast.Call) -> bool:
    """Whether a model is copied, and not an attack or a sample that is the best of its kind."""
    text = ast.unparse(call.args[0]).lower() if call.args else ""
    return name_of(call.func) == "deepcopy" and bool(_WEIGHTS.search(text))
