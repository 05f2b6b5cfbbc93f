"""Schedulers of learning rates as they are made: for which optimizer, and over how many steps they are meant.

Owns reading a scheduler's settings. Their steps are observed in `truestep.watch.hooks.scheduler`.
"""

import functools
import inspect
import sys
from collections.abc import Iterator
from time import perf_counter_ns
from types import FrameType, FunctionType
from typing import Any

from torch.optim import Optimizer

from truestep.watch.evidence.facts.optimizing import SchedulerEffective, SchedulerMade, ScheduleSettings
from truestep.watch.hooks.scheduler import classes_with
from truestep.watch.hooks.table import Hook, Observation, put
from truestep.watch.script.tape import Tape

_MAX_NUMBERS = 64


def watch(tape: Tape) -> None:
    """Note every scheduler that is made, and those that only another one steps."""
    schedules = _Schedules(tape)
    put(tape, [Hook(f"{kind}.__init__", _Schedules.made) for kind in classes_with("__init__")], schedules)
    tape.listen(schedules, "scheduler_inner")


class _Schedules:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._is_inside = False
        self._inner: set[int] = set()

    def made(self, scheduler: Any, /, *_: Any, **__: Any) -> Observation:
        """A scheduler is made; the constructor of a base class belongs to it."""
        if self._is_inside:
            return
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False
        self._tape.call_listener(self._meet, scheduler)

    def _meet(self, scheduler: Any) -> None:
        tape = self._tape
        optimizer = vars(scheduler).get("optimizer")
        number = tape.number("optimizer", optimizer) if isinstance(optimizer, Optimizer) else None
        names = (tape.number("scheduler", scheduler), type(scheduler).__qualname__, number)
        facts = SchedulerMade(*names, self._describe(scheduler))
        tape.mark(facts, tape.sites.here(_depth(scheduler)), perf_counter_ns())

    def _describe(self, scheduler: Any) -> ScheduleSettings:
        known = vars(scheduler)  # asks no property of the user's
        milestones = known.get("milestones") or known.get("_milestones") or ()
        inner = known.get("_schedulers")
        numbers = {number for function in known.get("lr_lambdas") or () for number in _numbers(function)}
        return ScheduleSettings(
            t_max=_number(known.get("T_max")),
            total_steps=_number(known.get("total_steps")),
            total_iters=_number(known.get("total_iters")),
            milestones=sorted(item for item in milestones if isinstance(item, int | float)),
            numbers=sorted(numbers)[:_MAX_NUMBERS],
            base_rates=[item for item in known.get("base_lrs") or () if isinstance(item, float)],
            inner={self._tape.number("scheduler", item): self._describe(item) for item in inner}
            if isinstance(inner, list)
            else {},
        )

    def scheduler_inner(self, scheduler: Any) -> None:
        number = self._tape.number("scheduler", scheduler)
        if number not in self._inner:
            self._inner.add(number)
            self._tape.note(SchedulerEffective(number))


def _depth(scheduler: Any) -> int:
    """Return how many calls up the scheduler was made: a class of the user's calls torch's from its own."""
    frame: FrameType | None = sys._getframe(1)
    depth, last = 1, 1
    while frame is not None:
        if frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is scheduler:
            last = depth
        depth += 1
        frame = frame.f_back
    return last + 1


def _number(setting: Any) -> float | None:
    return setting if isinstance(setting, int | float) else None


def _numbers(function: Any) -> Iterator[int]:
    """Yield the whole numbers that a function of the step was built with: one may be its horizon."""
    if isinstance(function, functools.partial):
        yield from _whole((*function.args, *function.keywords.values()))
        function = function.func
    if isinstance(function, FunctionType):
        yield from _whole(function.__defaults__ or ())
        yield from _whole(inspect.getclosurevars(function).nonlocals.values())


def _whole(values: Any) -> Iterator[int]:
    yield from (item for item in values if isinstance(item, int) and not isinstance(item, bool))
