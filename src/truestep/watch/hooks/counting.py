"""Steps outside of windows: they are counted, and torch's own functions run.

Owns what still tells that something is new: another optimizer, another line that steps, a loss that is not
finite. Each opens a window.
"""

import sys
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch

from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.hooks.backward import losses_of
from truestep.watch.hooks.table import Guard, drop_frames, unseen
from truestep.watch.script.tape import Tape
from truestep.watch.script.window import AFTER_CHANGE, EVERY, LATER, PROBE_EVERY

Function = Callable[..., Any]
_MAX_PLACES = 64
_LAST = PROBE_EVERY - 1


class Counter:
    """Counts the steps of all optimizers."""

    def __init__(
        self,
        tape: Tape,
        *,
        take_turn: Callable[[int], bool],
        rates: dict[int, list[Any]],
        changed_rates: Callable[[Any, int], list[float] | None],
    ) -> None:
        self._tape, self._take_turn, self._rates, self._changed_rates = tape, take_turn, rates, changed_rates
        self._guard = Guard(tape, "torch.optim.Optimizer.step")
        self._known = tape.things("optimizer")
        self._places: set[tuple[Any, int]] = set()
        """Where optimizers are stepped: code, and the instruction in it."""
        self._facts: dict[int, tuple[int, tuple[OptimizerStep, OptimizerStep]]] = {}
        """By optimizer: the line of its last step, and what is noted of one that does not count or does."""
        self._is_inside = False

    def around(self, original: Function, observed: Function) -> Function:
        """Return what makes a step: in windows the observed one, otherwise the original, and counts it."""
        tape, window, facts, places = self._tape, self._tape.window, self._facts, self._places
        known, under_way, guard = self._known, tape.under_way, self._guard

        def step(optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            place = (frame.f_code, frame.f_lasti)
            is_part = self._is_inside  # of a step that is counted
            is_counted = not window.is_open and under_way.thread == get_ident()
            if is_counted and not is_part and not (place in places and id(optimizer) in known):
                tape.come_near(AFTER_CHANGE)
                is_counted = False
            try:
                if is_part:
                    return original(optimizer, *args, **kwargs)
                if not is_counted:
                    if len(places) < _MAX_PLACES:
                        places.add(place)
                    return observed(optimizer, *args, **kwargs)
                self._is_inside = True
                try:
                    result = original(optimizer, *args, **kwargs)
                finally:
                    self._is_inside = False
            except BaseException as error:
                drop_frames(error)
                raise
            if tape.is_on and guard.is_working and known[id(optimizer)][0] in facts:
                try:
                    self._count(optimizer)
                except Exception as error:  # noqa: BLE001 - reported
                    guard.fail(error)
            return result

        return unseen(step, original)

    def _count(self, optimizer: Any) -> None:
        tape = self._tape
        number = self._known[id(optimizer)][0]
        counts = self._take_turn(number)
        site, facts = self._facts[number]
        noted = facts[counts]
        for group, rate in zip(optimizer.param_groups, self._rates[number], strict=False):
            now = group.get("lr")
            if now is not rate and (type(now) is not float or now != rate):
                noted = noted._replace(rates=self._changed_rates(optimizer, number))
                break
        tape.mark(noted, site, perf_counter_ns())
        if counts:
            tape.num_steps = step = tape.num_steps + 1
            if step & _LAST < 2 or step in tape.window.starts or step & (EVERY - 1) == EVERY - LATER // 2:
                self._move(step)

    def _move(self, step: int) -> None:
        """A step begins at which more than counting is due."""
        tape = self._tape
        tape.window.end_probe()
        if tape.plan.steps is not None and step >= tape.plan.steps:
            tape.stop()
        if tape.window.begins(step) or tape.is_over:
            tape.open_window(is_whole=True)
        elif step % PROBE_EVERY == 0:
            self._put_probe()

    def end_step(self, facts: OptimizerStep, site: int) -> None:
        """A step was observed: see whether the next one is."""
        each = facts._replace(rates=None)
        self._facts[facts.optimizer] = (site, (each._replace(counts=False), each._replace(counts=True)))
        if facts.counts:
            self._tape.close_window()
            if not self._tape.window.is_open and self._tape.num_steps % PROBE_EVERY == 0:
                self._put_probe()

    def _put_probe(self) -> None:
        """Have the loss of this step read, without waiting for a device."""
        tape, window, under_way = self._tape, self._tape.window, self._tape.under_way
        original = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            if window.is_probing and tape.is_on and under_way.thread == get_ident():
                window.end_probe()
                losses = losses_of(args, kwargs)
                tape.emit("probed", losses)
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                drop_frames(error)
                raise

        window.begin_probe((torch.autograd, "backward", original, unseen(backward, original)))
