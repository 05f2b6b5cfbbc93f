"""Schedulers as rules read them: how they were made, their steps, and those of their optimizer.

Owns the reading. Judges nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from truestep.rules import Evidence
from truestep.watch import Moment
from truestep.watch.evidence.facts.loading import BatchFetched, EpochBegan
from truestep.watch.evidence.facts.optimizing import (
    OptimizerStep,
    SchedulerMade,
    SchedulerStep,
    ScheduleSettings,
)

_PER_STEP = 0.8


@dataclass(kw_only=True)
class Schedule:
    """A scheduler that was stepped."""

    made: Moment[SchedulerMade]
    turns: list[Moment[SchedulerStep]]
    steps: list[Moment[OptimizerStep]]
    num_epochs: int
    """0 if no loader was used."""
    num_batches: int
    """Of the loader that gave most."""
    rates: list[float] = field(default_factory=list)
    """The learning rate of each step."""

    @property
    def is_per_step(self) -> bool:
        """Whether it is stepped with its optimizer."""
        return len(self.turns) >= _PER_STEP * len(self.steps)

    @property
    def steps_per_epoch(self) -> float:
        """How many steps an epoch has; 0 if there are no epochs."""
        return len(self.steps) / self.num_epochs if self.num_epochs else 0.0


def find_schedules(evidence: Evidence) -> Iterator[Schedule]:
    """Yield all that were stepped, and that no other scheduler steps."""
    moments = evidence.of(SchedulerMade)
    inner = {number for moment in moments for number in moment.facts.settings.inner}
    epochs, batches = _count_batches(evidence)
    for made in moments:
        if made.facts.scheduler in inner:
            continue
        turns = [item for item in evidence.of(SchedulerStep) if item.facts.scheduler == made.facts.scheduler]
        steps = [item for item in evidence.of(OptimizerStep) if item.facts.optimizer == made.facts.optimizer]
        if turns and steps:
            yield Schedule(
                made=made,
                turns=turns,
                steps=steps,
                num_epochs=epochs,
                num_batches=batches,
                rates=_rates(steps),
            )


def _count_batches(evidence: Evidence) -> tuple[int, int]:
    """Return how often the loader that gave most batches was gone through, and how many it gave."""
    batches: dict[int, int] = {}
    for moment in evidence.of(BatchFetched):
        batches[moment.facts.loader] = batches.get(moment.facts.loader, 0) + 1
    busiest = max(batches, key=lambda number: batches[number], default=None)
    num_epochs = sum(moment.facts.loader == busiest for moment in evidence.of(EpochBegan))
    return num_epochs, max(batches.values(), default=0)


def _rates(steps: list[Moment[OptimizerStep]]) -> list[float]:
    """Return the highest rate of the groups at each step; it is noted when it changes."""
    rates, rate = [], 0.0
    for moment in steps:
        if moment.facts.rates:
            rate = max(float(item) for item in moment.facts.rates)
        rates.append(rate)
    return rates


def horizons_of(settings: ScheduleSettings) -> Iterator[float]:
    """Yield the numbers of steps that a scheduler may be meant for."""
    named = (settings.t_max, settings.total_steps, settings.total_iters)
    yield from (horizon for horizon in named if horizon is not None)
    yield from settings.numbers
    if settings.inner:
        start = settings.milestones[-1] if settings.milestones else 0
        yield from (start + horizon for horizon in horizons_of(list(settings.inner.values())[-1]))
