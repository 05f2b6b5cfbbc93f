"""The light recorder: operations as rules need them, without bits, and cheap enough for every script.

Owns what is left out: what no rule reads, and most of what comes thousands of times. The mode that sees
operations, and who called them, are in `recorder`.
"""

from typing import Any

import torch

from truestep.watch.evidence.operation import PHASES, Row
from truestep.watch.hooks.table import put
from truestep.watch.operations.recorder import HOOKS, Mode, OperationRecorder
from truestep.watch.operations.traces import OperationSchema
from truestep.watch.script import module_tree
from truestep.watch.script.tape import Tape

_SETUP = PHASES.index("setup")
_MAX_PER_STEP = 4096
_MAX_PER_PLACE = 128
_MAX_VISITS = 2
_MAX_LATE = 16
"""Calls that are looked at beyond the first steps: a script may make a new module for each task."""
_NUM_AFTER = 48
"""Operations after a forward pass in evaluation that are noted: they compare what it gave with the labels."""


def watch(tape: Tape) -> None:
    """Note operations in the steps that the plan names; lightly if rules read them, and nobody their bits."""
    if tape.plan.operations is not None:
        is_light = tape.plan.inspect and tape.plan.bits == "none"
        tape.recorder = LightRecorder(tape) if is_light else OperationRecorder(tape)
        put(tape, HOOKS, tape.recorder)
        tape.recorder.move(tape.num_steps)


class LightRecorder(OperationRecorder):
    """The operations of a process, as far as rules read them."""

    is_light = True

    def __init__(self, tape: Tape) -> None:
        super().__init__(tape)
        self._is_own = tape.sites.is_own
        self._models = tape.things("model")
        self._met: set[int] = set()
        self._num_visits: dict[tuple[int, int], int] = {}
        self._num_late = self._num_noted = 0
        self._is_visit = False
        """Whether it is on for one forward pass in evaluation, and for what is done with its result."""
        self._is_after = False
        """Whether that pass has returned."""
        # Code and how often it has called an operation in this step.
        self._places: dict[tuple[int, int, int], list[Any]] = {}
        self._views: set[tuple[int, int]] = set()
        self._sizes: dict[int, int] = {}
        self._away: Mode | None = None
        """The mode of the main thread, if it is taken off for a while."""
        tape.listen(forward_begins=self.meet_forward)
        self._while_on = {
            "forward_ends": self.leave_forward,
            "backward_begins": self.meet_backward,
            "backward_ends": self.turn_back,
        }
        """Who is told only while operations are noted: most steps are not among them."""

    def move(self, num_steps: int) -> None:
        """So many steps have been made: begin to note, or end."""
        if num_steps > self._last and not self._is_entered and not self._places:
            return
        super().move(num_steps)
        self._traces.forget_passing(is_end=not self._is_entered)
        self._places.clear()
        self._num_noted = 0
        self._views.clear()

    def _open(self) -> None:
        super()._open()
        for event, act in self._while_on.items():
            self._tape.listen(act, event)

    def close(self) -> None:
        """Note nothing more, and write the rest."""
        self._is_visit = self._is_after = False
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
            self._sizes[number] = sum(item.numel() for item in module_tree.parameters(module))
        # One without weights, as a loss, is part of what is done with the model's output.
        is_loss = self._is_after and not self._sizes[number]
        if self._is_entered and not is_loss:
            if self._is_visit:
                self._close_outside()
            self._resume()
        if self.is_open and not is_loss:
            self._met.add(number)
        elif not is_loss:
            self._open_for(number, module)

    def _open_for(self, number: int, module: Any) -> None:
        """Begin to note for a module's first call in training, and a place's first ones in evaluation.

        Places of the user's that call in evaluation differ in what they do with the result.
        """
        if self._is_entered or self._num_late >= _MAX_LATE:
            return
        if _is_training(module):
            is_new = number not in self._met
            self._met.add(number)
        else:
            place = (number, self._tape.sites.here(3))
            num = self._num_visits[place] = self._num_visits.get(place, 0) + 1
            is_new = self._is_visit = num <= _MAX_VISITS
        self._num_late += is_new
        if is_new:
            self._num_noted = 0
            self._open()

    def leave_forward(self, module: Any, *_: Any) -> None:
        """It has returned."""
        if self._is_visit and not self._is_after and not _is_training(module):
            if torch.is_inference_mode_enabled():
                self.close()
            else:
                self._is_after = True
                self._num_noted = max(self._num_noted, _MAX_PER_STEP - _NUM_AFTER)

    def meet_backward(self, *_: Any) -> None:
        """A backward pass begins. That of a large model is not noted: it would take too much memory.

        Tensors that Python has seen are freed later, and the heap is left with holes of their size.
        """
        if self._is_visit and not self._tape.under_way.is_inside:
            self.close()
        if self._is_entered:
            self._resume()
            if self._is_entered and any(size > module_tree.LARGE for size in self._sizes.values()):
                self._turn_away()

    def _turn_away(self) -> None:
        mode = getattr(self._local, "mode", None)
        if mode is not None and not mode.thread:
            self._leave()
            self._away = mode

    def turn_back(self, *_: Any) -> None:
        """It has ended."""
        mode, self._away = self._away, None
        if mode is not None and self._is_entered:
            self._push(mode)

    def _resume(self) -> None:
        """Training begins, after a setup that was too much; or it goes on, and is too much itself."""
        if self._is_entered and not self.is_open:
            if self._callers.is_setup:
                self.is_open = True
                self._num_noted = 0
            else:
                self._close_outside()

    def _close_outside(self) -> None:
        """Note nothing more. The mode stays in inference mode, whose end puts back what was on before it."""
        self.is_open = False
        if not torch.is_inference_mode_enabled():
            self.close()

    def _is_left_out(self, mode: Mode, facts: OperationSchema, frame: Any) -> bool:
        """Whether no rule reads it: what a step does to weights, or parts of data before they are a batch."""
        if mode.thread:
            return False
        if frame is not None and self._is_own(frame.f_code.co_filename):
            code = frame.f_code  # kept, so that no other gets its id
            place = self._places.setdefault((id(code), frame.f_lasti, id(facts)), [code, 0])
            place[1] += 1
            if place[1] > _MAX_PER_PLACE:
                return True
        under_way = self._tape.under_way
        if under_way.is_stepping and not under_way.is_inside:
            return not facts.may_draw
        return under_way.is_fetching and facts.is_view

    def _is_repeated(self, name: int, origin: int, facts: OperationSchema) -> bool:
        is_known = (name, origin) in self._views
        if facts.is_view:
            self._views.add((name, origin))
        return is_known

    def _keep(self, row: Row) -> None:
        if row.phase == _SETUP:
            self._traces.num_lasting = row.index + 1
        super()._keep(row)
        self._num_noted += 1
        if self._num_noted >= _MAX_PER_STEP:
            self.is_open = False  # until the next step, or the first forward pass


def _is_training(module: Any) -> bool:
    """Whether a pass may be learned from: text is often generated in train mode, without gradients."""
    return module_tree.is_training(module) and torch.is_grad_enabled()
