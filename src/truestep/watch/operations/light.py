"""The light recorder: operations as rules need them, without bits, and cheap enough for every script.

Owns what is left out: what no rule reads, and most of what comes thousands of times. The mode that sees
operations, and who called them, are in `recorder`.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from truestep.watch.evidence.operation import HAS_GENERATOR, IS_RANDOM, IS_UNINITIALISED, PHASES, Row
from truestep.watch.operations import recorder
from truestep.watch.operations.callers import Caller, frame_above
from truestep.watch.operations.recorder import Mode, OperationRecorder
from truestep.watch.operations.traces import (
    OperationSchema,
    draws_from,
    find_generator,
    gather,
    scalars_of,
    tensors_in,
)
from truestep.watch.operations.windows import Place, Windows
from truestep.watch.script import parts
from truestep.watch.script.tape import Tape

_SETUP, _FORWARD, _BACKWARD = map(PHASES.index, ("setup", "forward", "backward"))
_MAX_PER_STEP = 4096
_MAX_PER_PLACE = 128
_NUM_AFTER = 48
"""Operations after a forward pass in evaluation that are noted: they compare what it gave with the labels."""


def watch(tape: Tape) -> None:
    """Note operations in the steps that the plan names; lightly if rules read them, and nobody their bits."""
    if tape.plan.operations is not None:
        is_light = tape.plan.inspect and tape.plan.bits == "none"
        recorder.watch(tape, LightRecorder(tape) if is_light else OperationRecorder(tape))


class LightRecorder(OperationRecorder):
    """The operations of a process, as far as rules read them."""

    is_light = True

    def __init__(self, tape: Tape) -> None:
        super().__init__(tape)
        self._is_own = tape.sites.is_own
        self._models = tape.things("model")
        self._windows = Windows()
        self._places: dict[tuple[int, int, int], Place] = {}
        self._views: set[tuple[int, int]] = set()
        self._sizes: dict[int, int] = {}
        self._away: Mode | None = None
        """The mode of the main thread, if it is taken off for a while."""
        tape.listen(forward_begins=self.meet_forward)
        self._while_on = {
            "forward_ends": self.leave_forward,
            "backward_begins": self.meet_backward,
            "backward_ends": self.turn_back,
            "step_begins": self.turn_away,
            "step_ends": self.turn_back,
        }
        """Who is told only while operations are noted: most steps are not among them."""

    def move(self, num_steps: int) -> None:
        """So many steps have been made: begin to note, or end."""
        if num_steps > self._last and not self._is_entered and not self._places:
            return
        super().move(num_steps)
        self._traces.forget_passing(is_end=not self._is_entered)
        self._places.clear()
        self._windows.num_noted = 0
        self._views.clear()

    def _open(self) -> None:
        super()._open()
        for event, act in self._while_on.items():
            self._tape.listen(act, event)

    def close(self) -> None:
        """Note nothing more, and write the rest."""
        self._windows.is_visit = self._windows.is_after = False
        self._away = None
        if self._is_entered:
            self._tape.ignore(*self._while_on.values())
        super().close()

    def meet_forward(  # limits: the tape calls it like this
        self, module: Any, _args: Any, _kwargs: Any
    ) -> None:
        """An outermost module is called: begin to note, if it is one that was not seen like this yet."""
        number = self._models[id(module)][0]
        if number not in self._sizes:
            self._sizes[number] = sum(item.numel() for item in parts.parameters(module))
        # One without weights, as a loss, is part of what is done with the model's output.
        is_loss = self._windows.is_after and not self._sizes[number]
        if self._is_entered and not is_loss:
            if self._windows.is_visit:
                self._close_outside()
            self._resume()
        if self.is_open and not is_loss:
            self._windows.meet(number)
        elif not is_loss and not self._opens_for(number, module):
            return
        self._callers.begin_forward(sys._getframe(4), module)  # that of the hook: it lives as long

    def _opens_for(self, number: int, module: Any) -> bool:
        """Begin to note for a call of a module, if it is off and has not seen one like this."""
        if self._is_entered or self._windows.is_over:
            return False
        is_training = _is_training(module)
        site = 0 if is_training else self._tape.sites.here(3)
        if not self._windows.opens_for(number, site, is_training=is_training):
            return False
        self._windows.num_noted = 0
        self._open()
        return True

    def leave_forward(self, module: Any, *_: Any) -> None:
        """It has returned."""
        if self._is_entered:
            self._callers.end_forward()
        if self._windows.is_visit and not self._windows.is_after and not _is_training(module):
            if torch.is_inference_mode_enabled():
                self.close()
            else:
                self._windows.is_after = True
                self._windows.num_noted = max(self._windows.num_noted, _MAX_PER_STEP - _NUM_AFTER)

    def meet_backward(self, *_: Any) -> None:
        """A backward pass begins. That of a large model is not noted: it would take too much memory.

        Tensors that Python has seen are freed later, and the heap is left with holes of their size.
        """
        if self._windows.is_visit and not self._tape.under_way.is_inside:
            self.close()
        if self._is_entered:
            self._callers.begin_backward()
            self._resume()
            if self._is_entered and any(size > parts.LARGE for size in self._sizes.values()):
                self._turn_away()

    def turn_away(self, optimizer: Any, _number: int) -> None:
        """One of torch's own optimizers makes a step: many small operations that no rule reads."""
        if not self._is_entered:
            return
        self.turn_back()
        is_torchs = type(optimizer).__module__.startswith("torch.optim.")
        if is_torchs and self._tape.under_way.is_stepping:
            self._turn_away()

    def _turn_away(self) -> None:
        mode = getattr(self._local, "mode", None)
        if mode is not None and not mode.thread:
            self._leave()
            self._away = mode

    def turn_back(self, *_: Any) -> None:
        """The step is made, or the backward pass."""
        mode, self._away = self._away, None
        if mode is not None and self._is_entered:
            self._push(mode)

    def _resume(self) -> None:
        """Training begins, after a setup that was too much; or it goes on, and is too much itself."""
        if self._is_entered and not self.is_open:
            if self._callers.is_setup:
                self.is_open = True
                self._windows.num_noted = 0
            else:
                self._close_outside()

    def _close_outside(self) -> None:
        """Note nothing more. The mode stays in inference mode, whose end puts back what was on before it."""
        self.is_open = False
        if not torch.is_inference_mode_enabled():
            self.close()

    def begin(  # limits: private to this package
        self, mode: Mode, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Any], None] | None:
        """Return what is told an operation's result; None if no rule reads it."""
        frame = frame_above(4, self._tape.under_way.thread)
        facts = self._facts.get(func) or self._facts_of(func)
        if not mode.thread:
            if frame is not None and self._is_own(frame.f_code.co_filename):
                place = self._place(frame, func)
                if place.num_calls > _MAX_PER_PLACE:
                    return None
            if self._is_left_out(facts):
                return None
        begun = self._begin_row(mode, facts, args, kwargs, frame)
        if begun is None:
            return None
        drawn = self.attempt(draws_from, args, kwargs) if facts.may_draw else None
        return partial(self._finish, facts, begun, drawn, args, kwargs)

    def _finish(  # limits: private to this class
        self,
        facts: OperationSchema,
        begun: Any,
        drawn: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        row, owned, changed = begun
        if facts.may_draw and (drawn is None or drawn.has_moved()):
            row.flags |= IS_RANDOM
        self._end_row(row, owned, changed, result, facts.is_view)
        for reader in self._tape.readers_of(facts.name):
            self.attempt(reader, row.index, args, kwargs, result)

    def _is_left_out(self, facts: OperationSchema) -> bool:
        """Whether no rule reads it: what a step does to weights, or parts of data before they are a batch."""
        under_way = self._tape.under_way
        if under_way.is_stepping and not under_way.is_inside:
            return not facts.may_draw
        return facts.is_passed_by or (under_way.is_fetching and facts.is_view)

    def _begin_row(  # limits: private to this class
        self, mode: Mode, facts: OperationSchema, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any
    ) -> tuple[Row, set[int], list[Tensor]] | None:
        """Return the row as it is known before the operation, the memory of its arguments, who is changed."""
        under_way = self._tape.under_way
        is_main = not mode.thread
        with self._lock:
            is_inside = is_main and under_way.is_inside and not under_way.is_in_backward
            caller = self._callers.look_up(frame, is_main=is_main, is_inside=is_inside)
        if caller.is_ours:
            return None
        name = self._tables.text(facts.name)
        node: Any = torch._C._current_autograd_node()
        if node is not None and caller.phase != _FORWARD:  # otherwise it is computed again
            return self._begin_backward(mode, facts, args, kwargs, (caller, name, node))
        ins, owned, changed = self._traces.follow_ins(args, kwargs, facts=facts)
        has_node = torch.is_grad_enabled() and any(item.has_grad for item in ins)
        mode.claim_nodes((name, caller.site, caller.module), has_node=has_node)
        row = self._new_row(mode, caller, name)
        if facts.is_uninitialised:
            row.flags |= IS_UNINITIALISED
        if facts.takes_generator:
            row.flags |= HAS_GENERATOR * (find_generator(args, kwargs) is not None)
        row.scalars, row.ins = scalars_of(args, kwargs), ins
        return row, owned, changed

    def _begin_backward(  # limits: private to this class
        self,
        mode: Mode,
        facts: OperationSchema,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        known: tuple[Caller, int, Any],
    ) -> tuple[Row, set[int], list[Tensor]] | None:
        """The same in a backward pass, of which rules read what it is the gradient of, and who wrote it."""
        caller, name, node = known
        origin = self._origin_number(self._origin_of(mode, node._sequence_nr()))
        if torch.is_grad_enabled():
            mode.claim_nodes((name, caller.site, caller.module), has_node=True)
        if facts.is_view:
            if (name, origin) in self._views:
                return None
            self._views.add((name, origin))
        row = self._new_row(mode, caller, name)
        row.origin = origin  # as it was before nodes were claimed
        changed = []
        if facts.written:
            changed = [item.tensor for item in gather(args, kwargs, facts=facts) if item.is_written]
        return row, set(), changed

    def _end_row(  # limits: private to this class
        self, row: Row, owned: set[int], changed: list[Tensor], result: Any, is_view: bool
    ) -> None:
        results = [result] if isinstance(result, Tensor) else tensors_in((result,))
        with self._lock:
            outs = self._traces.follow_outs(row.index, results, owned=owned, changed=changed, is_view=is_view)
            if row.phase != _BACKWARD:
                row.outs = outs
            if row.phase == _SETUP:
                self._traces.num_lasting = row.index + 1
            self._keep(row)
        self._windows.num_noted += 1
        if self._windows.num_noted >= _MAX_PER_STEP:
            self.is_open = False  # until the next step, or the first forward pass

    def _place(self, frame: Any, func: OpOverload) -> Place:
        """Return the place of the user's that calls, with how often it has in this step."""
        code = frame.f_code
        key = (id(code), frame.f_lasti, id(func))
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = Place(code)
        place.num_calls += 1
        return place


def _is_training(module: Any) -> bool:
    """Whether a pass may be learned from: text is often generated in train mode, without gradients."""
    return parts.is_training(module) and torch.is_grad_enabled()
