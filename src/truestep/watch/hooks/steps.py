"""Steps of optimizers, by torch's own hooks around every step: observed in windows, counted otherwise.

Owns which step counts: several optimizers that take turns make one step together, and the first to come again
begins the next. A step that is made inside of another one is a part of it. Between windows a new optimizer or
line that steps opens one.
"""

import sys
from threading import get_ident
from time import perf_counter_ns
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.hooks.backward import losses_of
from truestep.watch.hooks.table import Guard, drop_frames, hide, unseen, when_removed
from truestep.watch.script.tape import Tape
from truestep.watch.script.under_way import STEPS
from truestep.watch.script.window import AFTER_CHANGE, EVERY, LATER, PROBE_EVERY

_MAX_PLACES = 64
_LAST = PROBE_EVERY - 1


class Turns:
    """Which step begins the next step of training: optimizers that take turns make one together."""

    def __init__(self, known: dict[int, tuple[int, Any]]) -> None:
        self._known = known
        self._taken: set[int] = set()
        """The optimizers that have made their part of this step."""

    def take(self, number: int) -> bool:
        """An optimizer makes a step: return whether it begins the next."""
        counts = number in self._taken or self._are_gone()
        if counts:
            self._taken.clear()
        self._taken.add(number)
        return counts

    def _are_gone(self) -> bool:
        """Whether none is left to go on: a script may make a new one for each task."""
        return all(-number - 1 in self._known for number in self._taken)


class _Begun(NamedTuple):
    """A step that is observed, as its beginning shows it."""

    number: int
    counts: bool
    has_closure: bool
    site: int
    begun_ns: int


class Steps:
    """The steps of all optimizers, also of those that were made before the observation."""

    def __init__(self, tape: Tape) -> None:
        self._tape, self._chain = tape, tape.chain
        self._guard = Guard(tape, "torch.optim.Optimizer.step")
        self._known = tape.things("optimizer")
        self._turns = Turns(self._known)
        self._rates: dict[int, list[Any]] = {}
        self._places: set[tuple[Any, int]] = set()
        """Where optimizers are stepped: code, and the instruction in it."""
        self._facts: dict[int, tuple[int, tuple[OptimizerStep, OptimizerStep]]] = {}
        """By optimizer: the line of its last step, and what is noted of one that does not count or does."""
        self._frame = 0
        """The id of torch's frame around the step under way. One that has raised leaves its own here."""
        self._begun: _Begun | None = None
        """What the step under way began with, if it is observed."""

    def begin(  # limits: torch calls it like this
        self, optimizer: Optimizer, args: Any, kwargs: Any
    ) -> None:
        """A step begins."""
        tape, frame = self._tape, sys._getframe(1)
        if not tape.is_on or not self._guard.is_working or (self._frame and _is_inside(frame, self._frame)):
            return
        caller = frame.f_back
        place = (caller.f_code, caller.f_lasti) if caller is not None else (None, 0)
        if not tape.window.is_open and tape.under_way.thread == get_ident():
            if place in self._places and self._known.get(id(optimizer), (None,))[0] in self._facts:
                self._frame, self._begun = id(frame), None
                return
            tape.look_closely(AFTER_CHANGE)
        if len(self._places) < _MAX_PLACES:
            self._places.add(place)
        if not tape.under_way.enter(STEPS):
            return
        self._frame, self._begun = id(frame), None
        try:
            self._observe(optimizer, args[1] if len(args) > 1 else kwargs.get("closure"))
        except Exception as error:  # noqa: BLE001 - reported
            self._guard.fail(error)
        finally:
            tape.under_way.leave()

    def end(self, optimizer: Optimizer, *_: Any) -> None:
        """It has been made."""
        if id(sys._getframe(1)) != self._frame:
            return
        begun, self._begun, self._frame = self._begun, None, 0
        if not self._tape.is_on or not self._guard.is_working:
            return
        try:
            if begun is not None:
                self._note(optimizer, begun)
                return
            # Between windows: each step is counted, with few calls of ours.
            number = self._known[id(optimizer)][0]
            counts = self._turns.take(number)
            site, facts = self._facts[number]
            noted = facts[counts]
            for group, rate in zip(optimizer.param_groups, self._rates[number], strict=False):
                now = group.get("lr")
                if now is not rate and (type(now) is not float or now != rate):
                    noted = noted._replace(rates=self._changed_rates(optimizer, number))
                    break
            self._tape.mark(noted, site, perf_counter_ns())
            if counts:
                self._tape.num_steps = step = self._tape.num_steps + 1
                is_half = step & (EVERY - 1) == EVERY - LATER // 2
                if step & _LAST < 2 or is_half or step in self._tape.window.starts:
                    self._move(step)
        except Exception as error:  # noqa: BLE001 - reported
            self._guard.fail(error)

    def _observe(self, optimizer: Optimizer, closure: Any) -> None:
        tape, has_closure = self._tape, closure is not None
        tape.open_window()  # another thread trains from here on
        tape.end_if_over()
        known = self._known.get(id(optimizer))
        number = tape.number("optimizer", optimizer) if known is None else known[0]
        counts = self._turns.take(number)
        if self._chain is not None:
            self._chain.take_before(optimizer, number, has_closure=has_closure)
            if not has_closure:
                self._chain.take_gradients(optimizer)
        site = tape.sites.here(3)
        tape.under_way.is_stepping = not has_closure  # with one, passes are a part of it
        tape.emit("step_begins", optimizer, number)
        self._begun = _Begun(number, counts, has_closure, site, perf_counter_ns())

    def _note(self, optimizer: Optimizer, begun: _Begun) -> None:
        tape, number = self._tape, begun.number
        tape.under_way.is_stepping = False
        tape.emit("step_ends", optimizer, number)
        rates = self._changed_rates(optimizer, number)
        facts = OptimizerStep(number, begun.counts, rates)
        tape.mark(facts, begun.site, begun.begun_ns)
        if self._chain is not None:
            if begun.has_closure:
                self._chain.take_gradients(optimizer)
            self._chain.close_update(optimizer, number, site=begun.site)
        each = facts._replace(rates=None)
        self._facts[number] = (begun.site, (each._replace(counts=False), each._replace(counts=True)))
        if begun.counts:
            tape.count_step()
            tape.close_window()
            if not tape.window.is_open and tape.num_steps % PROBE_EVERY == 0:
                self._put_probe()

    def _changed_rates(self, optimizer: Optimizer, number: int) -> list[float] | None:
        rates: list[Any] = [group.get("lr") for group in optimizer.param_groups]
        if rates == self._rates.get(number):
            return None
        self._rates[number] = rates
        return rates if all(isinstance(rate, int | float) for rate in rates) else None

    def _move(self, step: int) -> None:
        """A step begins at which more than counting is due."""
        tape = self._tape
        tape.window.end_probe()
        if tape.plan.steps is not None and step >= tape.plan.steps:
            tape.is_over = True
        if tape.window.begins(step) or tape.is_over:
            tape.open_window(is_whole=True)
        elif step % PROBE_EVERY == 0:
            self._put_probe()

    def _put_probe(self) -> None:
        """Have the loss of this step read, without waiting for a device."""
        tape, window, under_way = self._tape, self._tape.window, self._tape.under_way
        original = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            if window.probe is not None and tape.is_on and under_way.thread == get_ident():
                window.end_probe()
                losses = losses_of(args, kwargs)
                tape.emit("probed", losses)
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                drop_frames(error)
                raise

        window.begin_probe((torch.autograd, "backward", original, unseen(backward, original)))


for _hook in (Steps.begin, Steps.end):
    hide(_hook)


def _is_inside(frame: FrameType, around: int) -> bool:
    """Whether a step is made inside of another one, whose frame has this id: it is still on the stack."""
    outer = frame.f_back
    while outer is not None:
        if id(outer) == around and outer.f_code is frame.f_code:
            return True
        outer = outer.f_back
    return False


def watch(tape: Tape) -> None:
    """Observe the steps of all optimizers."""
    steps = Steps(tape)
    when_removed(register_optimizer_step_pre_hook(steps.begin).remove)
    when_removed(register_optimizer_step_post_hook(steps.end).remove)
    when_removed(tape.window.end_probe)
