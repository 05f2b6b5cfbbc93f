"""Gradients are zeroed before a step uses them.

## What it finds
A backward pass whose gradients are all zeroed before an optimizer step could use them: `zero_grad` between
`backward` and `step`, or at each micro-batch of an accumulation. The reported line is that of the backward
pass if the optimizer is never stepped, and that of the step if it comes before the backward pass. A pass is
not reported if it had another purpose: weights changed in between, it computed the gradient of an input, or
the script reads gradients.

## Why it matters
The pass is wasted, and so is its data. If you accumulate over four micro-batches and call `zero_grad` at each
of them, three quarters of the samples never reach the weights.
"""

from collections import Counter
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.grouping import by_line, grouped
from truestep.rules.kit.roster import names_of
from truestep.rules.loop._passes import (
    Pass,
    find_passes,
    is_looked_at,
    reads_gradients,
    used_places,
    usual_number,
)
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import (
    BackwardExamined,
    GradientsApplied,
    GradientsDropped,
    OptimizerStep,
)
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.kinds import Place

RULE = Meta(
    code="LOOP02",
    severity="error",
    needs=(BackwardPass, BackwardExamined),
    caused_by=("LOOP10",),
    fix="Call zero_grad() once for every optimizer.step(), before its first backward pass or after the step.",
)
_MIN_TIMES, _MIN_IDLE = 2, 3


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find lines that zero gradients which no step has used."""
    found = by_line(_dropped(evidence))
    if reads_gradients(evidence):
        return
    has_steps = evidence.has(OptimizerStep)
    empty = _empty_steps(evidence)
    enough = [
        moments
        for moments in found.values()
        if len(moments) >= _MIN_TIMES + (not has_steps)
        and (not empty or moments[0].facts.optimizer in empty)  # what others throw away was meant for these
    ]
    yield from (_report(evidence, moments) for moments in enough)
    if not enough:
        yield from (_report_empty(evidence, moments) for moments in empty.values())


def _empty_steps(evidence: Evidence) -> dict[int, list[Moment[GradientsApplied]]]:
    """Return steps of optimizers that backward passes reach, and that have no gradient at any step."""
    reached = {number for moment in evidence.of(BackwardExamined) for number in moment.facts.optimizers}
    steps = grouped(evidence.of(GradientsApplied), "facts.optimizer")
    return {
        number: moments
        for number, moments in steps.items()
        if number in reached
        and len(moments) >= _MIN_IDLE
        and not any(moment.facts.num_with_gradient for moment in moments)
    }


def _report_empty(evidence: Evidence, moments: list[Moment[GradientsApplied]]) -> Finding:
    return Finding.at(
        moments[0],
        "the optimizer steps without gradients: they are zeroed before, or computed after the step",
        evidence=f"backward passes reach its {moments[0].facts.num_trainable} parameters, and at "
        f"all {len(moments)} steps that were checked none had a gradient"
        f"{names_of(evidence, moments[0].facts.optimizer)}",
    )


def _report(evidence: Evidence, moments: list[Moment[GradientsDropped]]) -> Finding:
    first = moments[0]
    passed = first.facts.backward_at
    num, line = len(first.facts.passes), passed.line
    text = (
        f"the gradients of {num} backward pass{'es' if num > 1 else ''} at line {line} were zeroed at "
        f"line {first.line} before any optimizer step used them; it happened {len(moments)} times"
    )
    steps = [item for item in evidence.of(OptimizerStep) if item.facts.optimizer == first.facts.optimizer]
    early = next((item for item in steps if _is_before(item, passed)), None)
    is_missing = not steps or (early is None and _lacks_steps(evidence, first.facts))
    if is_missing and passed.file and evidence.first.ended == "finished":
        return Finding.at(
            first,
            "no optimizer step uses the gradients of this backward pass: step() is missing",
            file=passed.file,
            line=line,
            evidence=text,
            fix="Call optimizer.step() after this backward pass.",
        )
    if early is not None:
        return Finding.at(
            early,
            "the optimizer steps before the backward pass: its gradients are zeroed before a step uses them",
            evidence=text,
            fix="Call optimizer.step() after the backward pass.",
        )
    return Finding.at(first, "gradients are zeroed before a step uses them", evidence=text)


def _lacks_steps(evidence: Evidence, facts: GradientsDropped) -> bool:
    """Whether no step has used passes of this line, and an optimizer whose weights they reach makes none."""
    passes = find_passes(evidence)
    place = (facts.backward_at.file, facts.backward_at.line)
    reached = {number for item in facts.passes if item in passes for number in passes[item].facts.optimizers}
    stepped = {moment.facts.optimizer for moment in evidence.of(OptimizerStep)}
    return place not in used_places(evidence, passes) and not reached <= stepped


def _is_before(step: Moment[OptimizerStep], passed: Place) -> bool:
    """Whether a step is written before the backward pass, in the same function."""
    is_same = (step.file, step.function) == (passed.file, passed.function)
    return is_same and step.line is not None and passed.line is not None and step.line < passed.line


def _has_inputs(item: Pass) -> bool:
    """Whether the gradient of a tensor was computed that no optimizer has."""
    assert item.graph is not None
    others = item.graph.other_sizes
    return bool(others) and sum(item.facts.num_reached) < item.graph.num_parameters + len(others)


def _dropped(evidence: Evidence) -> Iterator[Moment[GradientsDropped]]:
    passes = find_passes(evidence)
    used = used_places(evidence, passes)
    idle = _idle(evidence)
    for moment in evidence.of(GradientsDropped):
        facts = moment.facts
        is_idle = facts.optimizer in idle
        if (facts.has_moved and not is_idle) or not facts.is_finite:
            continue
        thrown = [passes[number] for number in facts.passes if number in passes]
        if len(thrown) < len(facts.passes) or any(
            item.graph is None or (_has_inputs(item) and not item.facts.num_grad_calls) for item in thrown
        ):
            continue
        if usual_number(evidence, facts.optimizer) > len(thrown):  # what is left of an accumulation
            continue
        if is_idle or is_looked_at(moment.step) or all(item.place in used for item in thrown):
            yield moment


def _idle(evidence: Evidence) -> set[int]:
    """Return optimizers that throw gradients away again and again, and whose steps never used any."""
    if evidence.first.ended != "finished" or not evidence.has(OptimizerStep):
        return set()
    num_times = Counter(moment.facts.optimizer for moment in evidence.of(GradientsDropped))
    using = {moment.facts.optimizer for moment in evidence.of(GradientsApplied) if moment.facts.passes}
    return {number for number, num in num_times.items() if num >= _MIN_IDLE} - using
