"""Steps of learning-rate schedulers.

Owns all classes of torch that have a step of their own. The step that each makes when it is built is none.
"""

import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from torch.optim import lr_scheduler

from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

Function = Callable[..., Any]


def watch(tape: Tape, wraps: Wraps) -> None:
    """Observe `step` of torch's schedulers; classes made from them inherit it."""
    under_way: list[Any] = []
    for kind in vars(lr_scheduler).values():
        if isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler) and "step" in vars(kind):
            wraps.put("step", lambda step: _wrap(step, tape, under_way), kind)


def _wrap(step: Function, tape: Tape, under_way: list[Any]) -> Function:
    """Return the wrapper; those of all classes share what is under way, as one scheduler may step another."""

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if under_way or not tape.is_on or sys._getframe(2).f_code.co_name == "_initial_step":
            if tape.is_on and under_way and under_way[0] is not self:
                tape.tell("scheduler_inner", self)
            try:
                return step(self, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
        key = ("scheduler", tape.sites.here(), tape.number("scheduler", self), type(self).__qualname__)
        under_way.append(self)
        begun = perf_counter_ns()
        try:
            result = step(self, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            under_way.pop()
        tape.mark(key, begun)
        tape.tell("scheduler_ends", self, key[2])
        return result

    return wrapper
