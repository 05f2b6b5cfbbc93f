"""Gradients of several micro-batches are summed, and the loss is not divided by their number.

## What it finds
Several backward passes at one line, over different samples, before one step, where each loss is a mean and
neither the loss nor the gradients are divided. Sums over samples, losses of different tasks or on different
parameters, and passes that depend on each other are not reported.

Also a second backward pass from the same loss before one step, which adds the same gradients again.

Also a first step that applies one micro-batch, or one more than the steps after it: `step % N == 0` is true
at step 0. A shorter step at the end of an epoch and steps that grow are not reported.

## Why it matters
The step is too large by the number of micro-batches, unless the optimizer divides by the gradient's size, as
Adam does. The learning rate does not mean the same as in the same training without accumulation, clipping
sets in earlier, and changing the number of micro-batches changes the result.

## How to fix
Divide the loss by the number of micro-batches in the step before you call `backward()`. If one loss is
differentiated twice, remove one of the two calls. Test `(step + 1) % N == 0` if `step` counts from 0.
"""

import ast
from collections.abc import Iterator
from itertools import pairwise
from math import prod

from truestep.rules import Edit, Evidence, Finding, Meta, Source
from truestep.rules.kit.edits import around, call_at, replace_node, text_of
from truestep.rules.kit.grouping import grouped
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import calls, nodes
from truestep.rules.loop._passes import Pass, find_passes, is_adaptive, is_looked_at
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import (
    BackwardExamined,
    GradientsApplied,
    GradientsClipped,
    GraphMeasured,
    GraphRepeated,
    OptimizerStep,
)
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.facts.structure import CheckpointLoaded

RULE = Meta(
    code="LOOP03",
    severity="warning",
    needs=(BackwardPass, GradientsApplied, BackwardExamined),
    fix="Divide the loss by the number of micro-batches before backward().",
)
_MIN_STEPS = 2
_MAX_FORWARDS = 6
_NEAR = 1.5
_TOLERANCE = 0.02
_MIN_WINDOWS = 3
_MAX_SHOWN = 6


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find accumulation without division, and losses that count twice."""
    yield from _check_repeats(evidence)
    passes = find_passes(evidence)
    yield from _check_sizes(evidence, passes)
    found: dict[tuple[str | None, int | None], list[tuple[Moment[GradientsApplied], list[Pass]]]] = {}
    cleared = set()
    for moment in evidence.of(GradientsApplied):
        for group in _groups(moment, passes):
            if any(item.facts.inputs is None for item in group):  # the first pass at a line that is met later
                continue
            if (
                moment.facts.factor is None
                and _is_undivided(group)
                and not _has_own_gradient(evidence, group)
            ):
                found.setdefault(group[0].place, []).append((moment, group))
            else:
                cleared.add(group[0].place)
    for place, steps in found.items():
        if place in cleared or len(steps) < min(_MIN_STEPS, len(evidence.of(OptimizerStep))):
            continue
        moment, group = steps[0]
        num = len(group)
        yield Finding.at(
            group[0].moment,
            f"the gradients of {num} micro-batches are summed, but the loss is not divided by {num}",
            step=moment.step + 1,
            evidence=f"{num} backward passes of mean losses over different samples before the step at line "
            f"{moment.line}; each counts with factor {_weight(group[0].graph):.3g}",
            cost=_cost(evidence, moment.facts.optimizer, num),
            severity=None if _is_by_hand(evidence, group[0].moment) else "info",
        )


def _check_repeats(evidence: Evidence) -> Iterator[Finding]:
    """Find losses that are differentiated twice, where one step applies both passes undivided."""
    found: dict[tuple[str | None, int | None], list[tuple[Moment[GraphRepeated], int]]] = {}
    divided = set()
    for moment in evidence.of(GraphRepeated):
        both = {moment.facts.first, moment.facts.number}
        for step in evidence.of(GradientsApplied):
            if both <= set(step.facts.passes):
                place = moment.file, moment.line
                found.setdefault(place, []).append((moment, step.facts.optimizer))
                if step.facts.factor is not None:
                    divided.add(place)
    for place, times in found.items():
        if place in divided or len(times) < min(_MIN_STEPS, len(evidence.of(OptimizerStep))):
            continue
        moment, optimizer = times[0]
        yield Finding.at(
            moment,
            "the same loss is differentiated twice before one step: its gradients count twice",
            evidence=f"a pass at line {moment.facts.first_at.line} began at the same loss, this one doubled "
            f"the gradients of {moment.facts.num_tensors} tensors",
            cost=_cost(evidence, optimizer, 2, unit="one pass"),
            fix="Remove the second backward().",
            severity=None if _is_by_hand(evidence, moment) else "info",
        )


def _check_sizes(evidence: Evidence, passes: dict[int, Pass]) -> Iterator[Finding]:
    """Find a first step that applies another number of micro-batches than those after it."""
    steps = grouped(evidence.of(GradientsApplied), "facts.optimizer")
    for moments in () if evidence.has(CheckpointLoaded) else steps.values():  # one may begin within a step
        groups = [[passes[number] for number in item.facts.passes if number in passes] for item in moments]
        sizes = [len(item.facts.passes) for item in moments]
        if not _is_first_uneven(sizes) or not all(map(_are_micro_batches, groups[:_MIN_WINDOWS])):
            continue
        ways = {(item.place, item.facts.stack, _weight(item.graph)) for group in groups for item in group}
        if (
            len(ways) == 1
            and [*map(len, groups)] == sizes
            and all(item.facts.factor is None for item in moments)
            and _is_by_hand(evidence, groups[0][0].moment)
        ):
            yield Finding.at(
                moments[0],
                f"the first step applies {sizes[0]} micro-batch{'es' * (sizes[0] > 1)}, and the next ones "
                f"{sizes[1]}",
                step=moments[0].step + 1,
                evidence=f"steps apply {', '.join(map(str, sizes[:_MAX_SHOWN]))} backward passes of line "
                f"{groups[0][0].moment.line}, each counts with factor {_weight(groups[0][0].graph):.3g}",
                fix="Run the step after every N-th micro-batch: (step + 1) % N == 0 if step counts from 0.",
            )


def _is_first_uneven(sizes: list[int]) -> bool:
    """Whether steps are of one size, but for the first and for shorter ones at the end of an epoch."""
    first, *others = sizes
    usual = max(others, default=0)
    if first == usual or first not in {1, usual + 1} or usual < 2:
        return False
    begins = [number for number, size in enumerate(others) if size < usual]
    return others[: _MIN_WINDOWS - 1] == [usual] * (_MIN_WINDOWS - 1) and all(
        after - before >= _MIN_WINDOWS or others[after] == first for before, after in pairwise(begins)
    )


def _cost(
    evidence: Evidence, optimizer: int, num: int, *, unit: str = "the mean over the same samples"
) -> str | None:
    """Return what the factor does: nothing to the length of steps that do not grow with the gradient."""
    if any(optimizer in moment.facts.optimizers for moment in evidence.of(GradientsClipped)):
        return f"gradients are {num} times as large where they are clipped"
    if is_adaptive(evidence, optimizer):
        return None
    return f"steps are {num} times as large as with {unit}"


def _is_by_hand(evidence: Evidence, moment: Moment[BackwardExamined] | Moment[GraphRepeated]) -> bool:
    """Whether the script's own line calls backward: in a framework's loop the division is the framework's."""
    source = evidence.source(moment.file)
    return source is None or "backward" in source.line(moment.line)


def _groups(moment: Moment[GradientsApplied], passes: dict[int, Pass]) -> Iterator[list[Pass]]:
    """Yield the passes of one step that came from the same line by the same way, if they are alike."""
    known = [passes[number] for number in moment.facts.passes if number in passes]
    if len(known) < len(moment.facts.passes):
        return
    alike = grouped(known, "facts.stack")
    for group in alike.values():
        if len(group) > 1 and all(item.graph for item in group):
            yield group


def _is_undivided(group: list[Pass]) -> bool:
    num = len(group)
    graphs = [item.graph for item in group if item.graph]
    return _are_micro_batches(group) and all(
        _weight(item) > _NEAR / num and _has_mean(item, num) for item in graphs
    )


def _are_micro_batches(group: list[Pass]) -> bool:
    """Whether passes do the same with other samples, and none depends on another."""
    facts, graphs = [item.facts for item in group], [item.graph for item in group if item.graph]
    are_alike = len({item.leaves for item in graphs}) == 1 and len({item.num_forwards for item in facts}) == 1
    if not are_alike or len(graphs) < len(group) or facts[0].num_forwards > _MAX_FORWARDS:
        return False
    if any(item.is_chained or item.num_grad_calls for item in facts) or any(item.num_old for item in graphs):
        return False
    # One that reads ahead has nothing left to read at the end.
    if len({tuple(item.loaders) for item in facts if item.loaders}) > 1:
        return False
    return len({item.inputs for item in facts}) == len(group)


def _has_mean(graph: GraphMeasured, num: int) -> bool:
    """Whether the loss has a term that is a mean, and nothing that may be the division."""
    means = [term.factors for term in graph.terms if term.reduction == "mean"]
    return any(all(abs(factor * num - 1) > _TOLERANCE for factor in factors) for factors in means)


def _weight(graph: GraphMeasured | None) -> float:
    """Return by what the whole loss is divided; what multiplies it, as a scaler does, is taken back."""
    return prod(min(1.0, abs(factor)) for factor in graph.factors) if graph else 1.0


def _has_own_gradient(evidence: Evidence, group: list[Pass]) -> bool:
    """Whether the script gives the gradient to begin with: torch makes none then."""
    first = group[0].moment
    return is_looked_at(first.step) and not any(
        operation.kind == "ones_like" and (operation.file, operation.line) == group[0].place
        for operation in evidence.operations
    )


def make_edits(source: Source, finding: Finding) -> list[Edit]:
    """Divide by what the script itself counts micro-batches with, if it does so by a remainder."""
    call = call_at(source, finding.line, name="backward")
    if finding.fix is not None:  # which of the two calls is meant is not known
        return []
    loop = around(source, finding.line, ast.For, ast.While)
    if call is None or loop is None or not isinstance(call.func, ast.Attribute) or call.args:
        return []
    counts = _counts(source, loop)
    if len(counts) != 1:
        return []
    loss = text_of(source, call.func.value)
    return replace_node(source, call.func.value, text=f"({loss} / {counts.pop()})")


def _counts(source: Source, loop: ast.For | ast.While) -> set[str]:
    """Return by what a loop counts its turns: `range(N)`, or a remainder that decides when a step is made."""
    if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and len(loop.iter.args) == 1:
        is_counted = getattr(loop.iter.func, "id", "") == "range"
        if is_counted and not calls(loop, "step"):
            return {text_of(source, loop.iter.args[0])}
    return {
        text_of(source, node.right)
        for test in nodes(loop, ast.If)
        if any(calls(item, "step") for item in test.body)
        for node in walk(test.test)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
    }
