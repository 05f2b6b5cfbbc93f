"""A scheduler is stepped at the wrong cadence: per batch instead of per epoch, or the other way round.

## What it finds
A learning rate that falls to nearly zero long before training ends. One that swings up and down every few
batches under a schedule designed for epochs. Milestones meant as epochs that pass within the first few
batches. A schedule designed for all steps that is stepped once per epoch and hardly changes.

## Why it matters
With a learning rate of nearly zero, the rest of the run is wasted. With one that hardly changes, the warm-up
never ends or the decay never happens.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.loop._schedules import Schedule, find_schedules, horizons_of
from truestep.watch.evidence.facts.optimizing import OptimizerStep, SchedulerMade, SchedulerStep

RULE = Meta(
    code="LOOP09",
    severity="warning",
    needs=(SchedulerMade, SchedulerStep, OptimizerStep),
    fix="Call scheduler.step() once per epoch or after each optimizer.step(), whichever its settings count.",
)
_TINY, _SMALL = 1e-3, 1e-2
_MIN_LEFT, _MIN_STEPS = 0.4, 12
_RARE = 3
_NEAR = 0.05
_MANY_TURNS, _FEW_TURNS = 8, 2.5


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find schedules that run too fast or hardly at all."""
    for schedule in find_schedules(evidence):
        if len(schedule.steps) >= _MIN_STEPS:
            if schedule.is_per_step and not 0 < schedule.steps_per_epoch < _RARE:
                yield from _check_fast(schedule)
            elif len(schedule.turns) * _RARE <= len(schedule.steps) and evidence.first.ended == "finished":
                yield from _check_slow(schedule)


def _check_fast(schedule: Schedule) -> Iterator[Finding]:
    settings, num = schedule.made.facts.settings, len(schedule.steps)
    fallen = _fallen(schedule.rates)
    if fallen is not None:
        yield _report(
            schedule,
            "the learning rate falls to nearly zero long before training ends",
            f"{max(schedule.rates):.3g} at its highest, {schedule.rates[fallen]:.3g} at step {fallen + 1} "
            f"of {num}",
        )
    elif schedule.made.facts.class_name == "CosineAnnealingLR" and _swings(schedule, settings.t_max):
        yield _report(
            schedule,
            "the learning rate swings up and down: the schedule counts epochs but is stepped per batch",
            f"T_max is {settings.t_max}, and it was stepped {len(schedule.turns)} times"
            + (f" in {schedule.num_epochs} epochs" if schedule.num_epochs else ""),
        )
    elif not settings.inner and _is_past(schedule, settings.milestones):
        yield _report(
            schedule,
            "all milestones pass within a few batches: they count epochs, but it is stepped per batch",
            f"milestones {settings.milestones}, {len(schedule.turns)} scheduler steps",
        )


def _fallen(rates: list[float]) -> int | None:
    """Return the step from which the rate stays near zero, if enough of them are left."""
    highest = 0.0
    for number, rate in enumerate(rates):
        highest = max(highest, rate)
        if rate <= _TINY * highest:
            left = rates[number:]
            is_over = all(item <= _SMALL * highest for item in left) and len(left) >= _MIN_LEFT * len(rates)
            return number if is_over else None
    return None


def _swings(schedule: Schedule, horizon: float | None) -> bool:
    if horizon is None:
        return False
    times = len(schedule.turns) / max(1, horizon)
    if not schedule.num_epochs:
        return times >= _MANY_TURNS
    is_for_epochs = horizon < schedule.steps_per_epoch or abs(horizon - schedule.num_epochs) <= 1
    return times >= _FEW_TURNS and is_for_epochs


def _is_past(schedule: Schedule, milestones: list[float]) -> bool:
    if not milestones:
        return False
    if schedule.num_epochs:
        return milestones[-1] <= schedule.num_epochs and len(schedule.turns) >= _RARE * milestones[-1]
    return len(milestones) > 1 and len(schedule.turns) >= _MANY_TURNS * milestones[-1]


def _check_slow(schedule: Schedule) -> Iterator[Finding]:
    num, times = len(schedule.steps), len(schedule.turns)
    for horizon in horizons_of(schedule.made.facts.settings):
        if abs(horizon - num) <= _NEAR * num and horizon >= _RARE * times:
            yield _report(
                schedule,
                "the schedule counts optimizer steps but is stepped once per epoch: it hardly changes",
                f"set up for {horizon:g} steps; the optimizer ran {num}, the scheduler {times}",
            )
            return


def _report(schedule: Schedule, message: str, evidence: str) -> Finding:
    return Finding.at(
        schedule.turns[0],
        message,
        evidence=f"{schedule.made.facts.class_name} created at line {schedule.made.line}: {evidence}",
        count=len(schedule.turns),
    )
