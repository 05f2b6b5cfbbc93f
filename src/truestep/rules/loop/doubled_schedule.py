"""Two equal schedulers are given one optimizer, while another optimizer has none.

## What it finds
Two schedulers of one kind and with the same settings that are built on the same optimizer and stepped
together, while another optimizer of the same training has no scheduler and a constant rate. Schedulers of
different kinds or settings, such as warm-up and decay, are not reported.

## Why it matters
The rate of one model decays twice as fast as it should, and that of the other one never decays. Both models
train, so nothing looks broken.

## How to fix
Give each scheduler its own optimizer: `StepLR(optimizer_d, ...)` for the second one.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.places import covers, name_of
from truestep.rules.analysis.syntax import walk
from truestep.rules.loop._schedules import Schedule, find_schedules
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import OptimizerStep, SchedulerMade, SchedulerStep

RULE = Meta(
    code="LOOP24",
    severity="error",
    needs=(SchedulerMade, SchedulerStep, OptimizerStep),
    fix="Build the second scheduler on the optimizer that has none.",
)
_LEAST_TURNS = 2
_TOGETHER = 0.9
_BY_FUNCTION = frozenset({"LambdaLR", "MultiplicativeLR"})
_TWO = 2


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find optimizers with two equal schedulers beside one without."""
    steps: dict[int, list[Moment[OptimizerStep]]] = {}
    for moment in evidence.of(OptimizerStep):
        steps.setdefault(moment.facts.optimizer, []).append(moment)
    made_for = {moment.facts.optimizer for moment in evidence.of(SchedulerMade)}
    left_out = [number for number in steps if number not in made_for and _is_constant(steps[number])]
    if evidence.is_part or None in made_for or not left_out:
        return
    by_optimizer: dict[int | None, list[Schedule]] = {}
    for schedule in find_schedules(evidence):
        by_optimizer.setdefault(schedule.made.facts.optimizer, []).append(schedule)
    for number, schedules in by_optimizer.items():
        others = [item for item in left_out if number is not None and _take_turns(steps, number, item)]
        if len(schedules) != _TWO or not others:
            continue
        first, second = sorted(schedules, key=lambda item: item.made.facts.scheduler)
        if _are_alike(evidence, first, second) and _are_together(first, second):
            made = second.made
            kind = made.facts.class_name
            yield Finding(
                message=f"two {kind} schedulers have the same optimizer, and another optimizer has none",
                file=made.file,
                line=made.line,
                evidence=f"the schedulers made at lines {first.made.line} and {made.line} are stepped "
                f"together ({len(second.turns)} times) and change the rate of one optimizer from "
                f"{first.rates[0]:.3g} to {first.rates[-1]:.3g}; the optimizer stepped at line "
                f"{steps[others[0]][0].line} has a constant rate",
            )


def _is_constant(steps: list[Moment[OptimizerStep]]) -> bool:
    """Whether an optimizer has the same rates in all steps; they are noted when they change."""
    return sum(moment.facts.rates is not None for moment in steps) <= 1


def _take_turns(steps: dict[int, list[Moment[OptimizerStep]]], one: int, other: int) -> bool:
    """Whether two optimizers are stepped in one loop."""
    both = [(steps[number][0].step, steps[number][-1].step) for number in (one, other)]
    return both[0][0] < both[1][1] and both[1][0] < both[0][1]


def _are_together(first: Schedule, second: Schedule) -> bool:
    """Whether both are stepped in the same steps of training."""
    one, other = ([turn.step for turn in item.turns] for item in (first, second))
    num_shared = len(set(one) & set(other))
    is_often = min(len(one), len(other)) >= _LEAST_TURNS
    return is_often and num_shared >= _TOGETHER * max(len(set(one)), len(set(other)))


def _are_alike(evidence: Evidence, first: Schedule, second: Schedule) -> bool:
    """Whether both are of one kind and were made with the same settings."""
    one, other = first.made, second.made
    if one.facts.class_name != other.facts.class_name or one.facts.class_name in _BY_FUNCTION:
        return False
    written = [_settings_at(evidence, made) for made in (one, other)]
    return one.facts.settings == other.facts.settings and written[0] is not None and written[0] == written[1]


def _settings_at(evidence: Evidence, made: Moment[SchedulerMade]) -> list[str] | None:
    """Return the arguments of the call that makes a scheduler, without the optimizer."""
    source = evidence.source(made.file)
    for node in walk(source.tree) if source is not None else ():
        if isinstance(node, ast.Call) and covers(node, made.line):
            name = name_of(node.func)
            if name is not None and name == made.facts.class_name:
                keywords = sorted(ast.unparse(item) for item in node.keywords if item.arg != "optimizer")
                is_keyword = len(keywords) < len(node.keywords)
                return [*map(ast.unparse, node.args if is_keyword else node.args[1:]), *keywords]
    return None


BUGGY = """
import torch
from torch import nn

torch.manual_seed(0)
first, second = nn.Linear(4, 4), nn.Linear(4, 1)
optimizer_a = torch.optim.SGD(first.parameters(), lr=0.1)
optimizer_b = torch.optim.SGD(second.parameters(), lr=0.1)
scheduler_a = torch.optim.lr_scheduler.ExponentialLR(optimizer_a, gamma=0.9)
scheduler_b = torch.optim.lr_scheduler.ExponentialLR(optimizer_a, gamma=0.9)  # expect: LOOP24
for step in range(6):
    x = torch.randn(16, 4)
    loss = (second(first(x).tanh()) - x.sum(1, keepdim=True)).square().mean()
    optimizer_a.zero_grad()
    optimizer_b.zero_grad()
    loss.backward()
    optimizer_a.step()
    optimizer_b.step()
    scheduler_a.step()
    scheduler_b.step()
"""

CLEAN = """
import torch
from torch import nn

torch.manual_seed(0)
first, second = nn.Linear(4, 4), nn.Linear(4, 1)
optimizer_a = torch.optim.SGD(first.parameters(), lr=0.1)
optimizer_b = torch.optim.SGD(second.parameters(), lr=0.01)
schedules = torch.optim.lr_scheduler
warmup = schedules.LinearLR(optimizer_a, start_factor=0.1, total_iters=3)
decay = schedules.ExponentialLR(optimizer_a, gamma=0.9)
for step in range(6):
    x = torch.randn(16, 4)
    loss = (second(first(x).tanh()) - x.sum(1, keepdim=True)).square().mean()
    optimizer_a.zero_grad()
    optimizer_b.zero_grad()
    loss.backward()
    optimizer_a.step()
    optimizer_b.step()
    warmup.step()
    decay.step()
"""

FIXED = BUGGY.replace(
    "ExponentialLR(optimizer_a, gamma=0.9)  # expect: LOOP24", "ExponentialLR(optimizer_b, gamma=0.9)"
)
