"""A learning-rate scheduler is never stepped, stepped before the optimizer, or stepped instead of it.

## What it finds
A scheduler that is never stepped in the whole run. A scheduler whose `step()` comes before the optimizer's in
every round (`step(epoch)` and `step(metric)` are allowed to). A scheduler that is stepped while the optimizer
never is.

## Why it matters
If it is never stepped, the learning rate stays at its first value. If it is stepped first, the first value of
the schedule is skipped. If it is stepped instead of the optimizer, the weights do not change.
"""

import ast
from collections.abc import Iterator
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.edits import call_at, statement_at
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import name_of
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import (
    GradientsZeroed,
    OptimizerStep,
    SchedulerEffective,
    SchedulerMade,
    SchedulerStep,
    StepSkipped,
)
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="LOOP10",
    severity="error",
    needs=(SchedulerMade,),
    fix="Call scheduler.step() after optimizer.step(), once per step or epoch, as the schedule counts.",
)
_MIN_STEPS, _MIN_ROUNDS, _MIN_INSTEAD = 2, 2, 3


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find schedulers that are not stepped where they should be."""
    schedules = evidence.of(SchedulerMade)
    inner = {number for moment in schedules for number in moment.facts.settings.inner}
    inner |= {moment.facts.scheduler for moment in evidence.of(SchedulerEffective)}
    for made in schedules:
        if made.facts.scheduler in inner or made.facts.optimizer is None:
            continue
        turns = [item for item in evidence.of(SchedulerStep) if _is(item, "scheduler", made)]
        steps = [item for item in evidence.of(OptimizerStep, StepSkipped) if _is(item, "optimizer", made)]
        if not turns:
            yield from _check_never(evidence, made, steps)
        elif not steps:
            yield from _check_instead(evidence, made, turns)
        else:
            yield from _check_first(evidence, turns, steps)


def _is(moment: Moment[Any], fact: str, made: Moment[Any]) -> bool:
    return bool(getattr(moment.facts, fact) == getattr(made.facts, fact))


def _check_never(evidence: Evidence, made: Moment[Any], steps: list[Moment[Any]]) -> Iterator[Finding]:
    if evidence.first.ended != "finished" or len(steps) < _MIN_STEPS or _may_be_stepped(evidence, made):
        return
    yield Finding.at(
        made,
        "the scheduler is never stepped: the learning rate does not change",
        evidence=f"{made.facts.class_name} is created at this line; its optimizer ran {len(steps)} steps, "
        "the scheduler none",
    )


def _may_be_stepped(evidence: Evidence, made: Moment[Any]) -> bool:
    """Whether this run has only not come to a step, or the scheduler was given to code of others."""
    nodes = [node for source in evidence.sources for node in walk(source.tree)]
    own = {
        node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    source = evidence.source(made.file)
    statement = statement_at(source, made.line or 0) if source is not None else None
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = {name_of(target) for target in targets} - {None}
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        given = {name_of(item) for item in (*call.args, *(keyword.value for keyword in call.keywords))}
        is_given_away = bool(names & given) and name_of(call.func) not in own
        is_step = isinstance(call.func, ast.Attribute) and call.func.attr == "step"
        owner = name_of(call.func.value) if isinstance(call.func, ast.Attribute) else None
        if is_given_away or (is_step and "sched" in str(owner).lower()):
            return True
    return False


def _check_instead(evidence: Evidence, made: Moment[Any], turns: list[Moment[Any]]) -> Iterator[Finding]:
    num = len([item for item in evidence.of(BackwardPass) if item.facts.how == "backward"])
    if evidence.has(
        OptimizerStep
    ):  # another optimizer's: this one is in use if it zeroes, once for each turn
        zeroed = [item for item in evidence.of(GradientsZeroed) if _is(item, "optimizer", made)]
        num = num if len(turns) >= len(zeroed) >= _MIN_INSTEAD else 0
    if min(len(turns), num) >= _MIN_INSTEAD:
        yield Finding.at(
            turns[0],
            "the scheduler is stepped, but the optimizer never is: the weights do not change",
            evidence=f"{num} backward passes, {len(turns)} scheduler steps, no optimizer step",
        )


def _check_first(evidence: Evidence, turns: list[Moment[Any]], steps: list[Moment[Any]]) -> Iterator[Finding]:
    source = evidence.source(turns[0].file)
    call = call_at(source, turns[0].line, name="step") if source is not None else None
    if call is not None and (call.args or call.keywords):
        return  # with an epoch or a metric as argument, it skips no value
    num_before = sum(item.at_s < steps[0].at_s for item in turns)
    is_last = turns[-1].at_s > steps[-1].at_s
    if num_before == 1 and not is_last and len(turns) >= _MIN_ROUNDS:
        yield Finding.at(
            turns[0],
            "the scheduler is stepped before the optimizer: the first value of the schedule is skipped",
            evidence=f"the optimizer's first step, at line {steps[0].line}, came after the scheduler's "
            f"first; so did its last, {len(turns)} rounds later",
        )
