"""A schedule is set up for more steps than it can make: it counts samples or micro-batches, not steps.

## What it finds
A scheduler that is stepped with its optimizer and whose length is exactly the number of samples of all epochs
(`epochs * len(dataset)` in place of `epochs * len(loader)`), or exactly the number of micro-batches although
several of them make one step.

## Why it matters
Only the beginning of the schedule runs. The warm-up takes most of the training, the rate hardly falls, and
the gain of the last, small steps is lost.

## How to fix
Set the length to the number of optimizer steps: `epochs * len(loader)`, divided by the number of
micro-batches per step.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.places import assignments, covers
from truestep.rules.analysis.syntax import walk
from truestep.rules.loop._schedules import Schedule, find_schedules, horizons_of
from truestep.watch.evidence.facts.loading import LoaderUsed
from truestep.watch.evidence.facts.optimizing import OptimizerStep, SchedulerMade, SchedulerStep

RULE = Meta(
    code="LOOP22",
    severity="warning",
    needs=(SchedulerMade, SchedulerStep, OptimizerStep, LoaderUsed),
    caused_by=("LOOP09", "LOOP10"),
    fix="Set the length of the schedule to the number of optimizer steps.",
)
_LEAST_TURNS, _LEAST_BATCH = 6, 4
_LONGER = 1.5
_LENGTHS = frozenset({"T_max", "total_steps", "total_iters", "steps_per_epoch", "num_training_steps"})


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find lengths that count something else than steps."""
    if evidence.first.ended != "finished" or evidence.is_part:
        return
    for schedule in find_schedules(evidence):
        num = len(schedule.turns)
        if num < _LEAST_TURNS or not schedule.is_per_step or not schedule.num_epochs:
            continue
        length = _find_length(evidence, schedule)
        for horizon in horizons_of(schedule.made.facts.settings):
            what = _counted(evidence, schedule, horizon, length.text) if horizon >= _LONGER * num else None
            if what is not None:
                yield _report(schedule, horizon, what, length)
                break


@dataclass(frozen=True)
class _Length:
    """How the length of a schedule is written, and where."""

    text: str
    line: int | None


def _counted(  # limits: private to this module
    evidence: Evidence, schedule: Schedule, horizon: float, text: str
) -> str | None:
    """Return what the length of a schedule counts, if it is not steps.

    A training that ends early may have as many samples as a longer one has steps: the text must not deny it.
    """
    num_epochs, num_batches = schedule.num_epochs, schedule.num_batches
    if horizon == num_batches and num_batches >= _LONGER * len(schedule.steps) and "/" not in text:
        return f"the {num_batches} batches of {num_epochs} epochs"
    for moment in evidence.of(LoaderUsed):
        facts = moment.facts
        size, length = facts.batch_size or 0, facts.length or 0
        if size < _LEAST_BATCH or length * num_epochs != num_batches or num_batches != len(schedule.turns):
            continue
        is_of_samples = (length - 1) * size < horizon / num_epochs <= length * size
        if horizon % num_epochs == 0 and is_of_samples and "load" not in text:
            return f"the {horizon / num_epochs:g} samples of {num_epochs} epochs"
    return None


def _report(schedule: Schedule, horizon: float, what: str, length: _Length) -> Finding:  # limits: private
    made = schedule.made
    share = len(schedule.turns) / horizon
    return Finding(
        message="the schedule is set up for more steps than the training makes",
        file=made.file,
        line=length.line or made.line,
        evidence=f"{made.facts.class_name} has a length of {horizon:g}, which is {what}; it was stepped "
        f"{len(schedule.turns)} times, {share:.0%} of its length. The rate began at {schedule.rates[0]:.3g} "
        f"and ended at {schedule.rates[-1]:.3g}",
    )


def _find_length(evidence: Evidence, schedule: Schedule) -> _Length:
    """Return how the length is computed: where it has a variable of its own, there."""
    source = evidence.source(schedule.made.file)
    for call in walk(source.tree) if source is not None else ():
        if not isinstance(call, ast.Call) or not covers(call, schedule.made.line):
            continue
        given = [item.value for item in call.keywords if item.arg in _LENGTHS] or call.args[1:2]
        for value in given:
            if not isinstance(value, ast.Name):
                return _Length(ast.unparse(value), None)
            found = list(assignments(source.tree, value.id)) if source is not None else []
            if len(found) == 1:
                return _Length(ast.unparse(found[0][1]), found[0][0].lineno)
    return _Length("", None)


BUGGY = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 4)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(dataset, batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
total = 3 * len(dataset)  # expect: LOOP22
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total)
for epoch in range(3):
    for inputs, targets in loader:
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
"""

CLEAN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30 * len(loader))
best, patience = float("inf"), 0
for epoch in range(30):
    total = 0.0
    for inputs, targets in loader:
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.item()
    if epoch == 2:  # stopped early
        break
"""

FIXED = BUGGY.replace("3 * len(dataset)", "3 * len(loader)")
