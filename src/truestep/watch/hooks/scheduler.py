"""Steps of learning-rate schedulers.

Owns all classes of torch that have a step of their own. The step that each makes when it is built is none.
"""

from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

from torch.optim import lr_scheduler

from truestep.watch.evidence.facts.optimizing import SchedulerStep
from truestep.watch.hooks.table import Observation, calling_frame
from truestep.watch.script.tape import Tape


class Schedulers:
    """What all classes share: one scheduler may step another, and that is no step of its own."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._under_way: Any = None

    def observe(self, scheduler: Any, /, *_: Any, **__: Any) -> Observation:
        """Observe a step."""
        tape, frame = self._tape, calling_frame()
        if self._under_way is not None:
            if self._under_way is not scheduler:
                tape.emit("scheduler_inner", scheduler)
            return
        if frame is not None and frame.f_code.co_name == "_initial_step":
            return
        facts = SchedulerStep(tape.number("scheduler", scheduler), type(scheduler).__qualname__)
        site = tape.sites.here(3)
        self._under_way = scheduler
        begun = perf_counter_ns()
        try:
            yield
        finally:
            self._under_way = None
        tape.mark(facts, site, begun)
        tape.emit("scheduler_ends", scheduler, facts.scheduler)


def classes_with(method: str) -> Iterator[str]:
    """Yield the names of torch's schedulers that have a method of their own; others inherit it."""
    for name, kind in list(vars(lr_scheduler).items()):
        if isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler) and method in vars(kind):
            yield f"torch.optim.lr_scheduler.{name}"
