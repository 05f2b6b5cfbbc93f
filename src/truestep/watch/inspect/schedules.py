"""Schedulers of learning rates as they are made: for which optimizer, and over how many steps they are meant.

Owns reading a scheduler's settings. Their steps are observed in `truestep.watch.scheduler`.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from types import FrameType, FunctionType
from typing import Any

from torch.optim import Optimizer, lr_scheduler

from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

Function = Callable[..., Any]
_SETTINGS = (
    "T_max",
    "T_0",
    "T_mult",
    "total_steps",
    "total_iters",
    "step_size",
    "gamma",
    "factor",
    "patience",
)
_MAX_NUMBERS = 64


def watch(tape: Tape, wraps: Wraps) -> None:
    """Note every scheduler that is made, and those that only another one steps."""
    schedules = _Schedules(tape)
    for kind in list(vars(lr_scheduler).values()):
        if isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler) and "__init__" in vars(kind):
            wraps.put("__init__", lambda make: _wrap_init(make, schedules), kind)
    tape.listeners["scheduler_inner"].append(schedules.scheduler_inner)
    tape.listeners["scheduler_made"].append(schedules.scheduler_made)


class _Schedules:
    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.is_inside = False
        self._inner: set[int] = set()

    def scheduler_made(self, scheduler: Any) -> None:
        tape = self.tape
        optimizer = vars(scheduler).get("optimizer")
        number = tape.number("optimizer", optimizer) if isinstance(optimizer, Optimizer) else None
        facts = (tape.number("scheduler", scheduler), type(scheduler).__qualname__, number)
        key = ("schedule", tape.sites.here(_depth(scheduler)), *facts)
        tape.mark(key, perf_counter_ns(), value=self._describe(scheduler))

    def _describe(self, scheduler: Any) -> dict[str, Any]:
        known = vars(scheduler)  # asks no property of the user's
        found = {name: known.get(name) for name in _SETTINGS}
        value: dict[str, Any] = {
            name: item for name, item in found.items() if isinstance(item, int | float) and item is not None
        }
        milestones = known.get("milestones") or known.get("_milestones")
        if milestones:
            value["milestones"] = sorted(item for item in milestones if isinstance(item, int | float))
        inner = known.get("_schedulers")
        if isinstance(inner, list):
            value["inner"] = [self.tape.number("scheduler", item) for item in inner]
            value["inner_settings"] = [self._describe(item) for item in inner]
        numbers = set[int]()
        for function in known.get("lr_lambdas") or ():
            numbers.update(_numbers(function))
        value["numbers"] = sorted(numbers)[:_MAX_NUMBERS]
        return value

    def scheduler_inner(self, scheduler: Any) -> None:
        number = self.tape.number("scheduler", scheduler)
        if number not in self._inner:
            self._inner.add(number)
            self.tape.note("scheduled", number)


def _wrap_init(make: Function, schedules: _Schedules) -> Function:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        is_outer = schedules.tape.is_on and not schedules.is_inside
        schedules.is_inside = True
        try:
            result = make(self, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            if is_outer:
                schedules.is_inside = False
        if is_outer:
            schedules.tape.tell("scheduler_made", self)
        return result

    return __init__


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


def _numbers(function: Any) -> Iterator[int]:
    """Yield the whole numbers that a function of the step was built with: one may be its horizon."""
    if isinstance(function, functools.partial):
        yield from _whole((*function.args, *function.keywords.values()))
        function = function.func
    if not isinstance(function, FunctionType):
        yield from _whole(vars(function).values() if hasattr(function, "__dict__") else ())
        return
    yield from _whole(function.__defaults__ or ())
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    yield from _whole(cells)
    for item in cells:
        if hasattr(item, "__dict__") and not callable(item):
            yield from _whole(vars(item).values())
    names = function.__globals__
    yield from _whole(names[name] for name in function.__code__.co_names if name in names)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _whole(values: Any) -> Iterator[int]:
    yield from (item for item in values if isinstance(item, int) and not isinstance(item, bool))
