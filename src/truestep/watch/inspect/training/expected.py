"""The peak of memory on an accelerator that is expected of training, before the first step is made.

Owns what later steps hold in addition to what the first passes were seen to take: state of optimizers,
gradients that are zeroed later, and what names of the script still hold. Reads the device's counters and
resets none. The host's memory has no such counters, so nothing is expected of it.
"""

import weakref
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from truestep.base.device import free_bytes, module_in_use
from truestep.watch.evidence.facts.course import MemoryExpected
from truestep.watch.plan import NUM_FIRST
from truestep.watch.script import parts
from truestep.watch.script.holdings import (
    expected_closure_bytes,
    expected_state_bytes,
    expected_working_bytes,
    gradients_bytes,
    memory_of,
    parameters_of,
    state_of,
)
from truestep.watch.script.leaves import find_tensors
from truestep.watch.script.tape import Tape

_EVENTS = ("forward_begins", "backward_begins", "backward_ends", "zero_begins", "step_begins")
_MAX_OPTIMIZERS, _FURTHER = 16, "further optimizers"
"""Some scripts make one for each parameter."""


class _Part(NamedTuple):
    """A part of the first steps, and what was there in it."""

    is_forward: bool
    stepped: frozenset[int]
    """Optimizers that had made a step: their state was there."""
    zeroed: frozenset[int]
    """Optimizers whose gradients had been zeroed."""


class _Needs(NamedTuple):
    """What an optimizer holds in later passes, in addition."""

    state_bytes: int
    """With what its step holds while a closure runs the passes."""
    gradients_bytes: int


class Expected:
    """Reads the peak of the first passes. Before the first step of each optimizer it notes what to expect."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._peaks: dict[_Part, int] = {}
        self._last_peak, self._has_risen = 0, False
        self._held: int | None = None
        """What the device held before the first forward pass with gradients."""
        self._input_bytes = self._left_bytes = self._state_bytes = 0
        """What the first pass was given; what it left, beside gradients; and the state of all optimizers."""
        self._needs: dict[int, _Needs] = {}
        self._unknown: list[str] = []
        """Classes of optimizers whose state is not known before it is there."""
        self._zeroed: set[int] = set()
        self._kept: set[int] = set()
        """Optimizers whose gradients are zeroed in place, so that they are there in every later pass."""
        self._is_forward = True
        self._pending: tuple[weakref.ref[Optimizer], int] | None = None
        """An optimizer in its first step, if its closure runs the passes."""
        self.own_bytes: int | None = None
        """What the first passes took, with their inputs and without what was there before."""
        tape.attend(self, *_EVENTS)

    def forward_begins(  # limits: the tape calls it like this
        self, _module: nn.Module, args: Any, kwargs: Any
    ) -> None:
        """A pass begins: remember what is held before the first."""
        if self._held is not None:
            self._read()
            self._is_forward = True
        elif torch.is_grad_enabled() and module_in_use() is not None:
            self._held = torch.accelerator.memory_allocated()
            self._last_peak = torch.accelerator.max_memory_allocated()
            given = memory_of(item for _, item in find_tensors((args, kwargs)))
            self._input_bytes = sum(item.num_bytes for item in given.values() if item.device != "cpu")

    def backward_begins(self, *_: Any) -> None:
        """All activations are there."""
        if self._tape.num_steps >= NUM_FIRST or (self._held is None and self._tape.num_steps):
            self._tape.ignore(*(getattr(self, event) for event in _EVENTS))
            return
        self._read()
        self._is_forward = False

    def backward_ends(self, *_: Any) -> None:
        """In a closure this is the last moment before the state is made."""
        if self._pending is not None:
            kept, number = self._pending
            self._pending = None
            optimizer = kept()
            if optimizer is not None:
                self._expect(optimizer, number)

    def zero_begins(self, owner: Optimizer | nn.Module, keeps: bool) -> None:
        """In later steps gradients are there until now, and beyond if they are kept."""
        self._read()
        numbers = self._optimizers_of(owner)
        self._zeroed |= numbers
        self._kept |= numbers if keeps else set()

    def step_begins(self, optimizer: Optimizer, number: int) -> None:
        """The passes are complete, unless a closure runs them."""
        if self._held is None and not self._tape.num_steps:
            self._pending = weakref.ref(optimizer), number
        elif self._held is not None and number not in self._needs:
            self._expect(optimizer, number)

    def _optimizers_of(self, owner: Optimizer | nn.Module) -> set[int]:
        """Return the numbers of the optimizers whose gradients the owner's are."""
        if isinstance(owner, Optimizer):
            return {self._tape.number("optimizer", owner)}
        own = {id(item) for item in parts.parameters(owner)}
        known = [(number, kept()) for number, kept in self._tape.things("optimizer").values()]
        return {
            number
            for number, item in known
            if item is not None and any(id(parameter) in own for parameter in parameters_of(item))
        }

    def _read(self) -> None:
        """A part has ended: read its peak, or what is held now if it was not the highest peak so far."""
        if self._held is None:
            return
        peak = torch.accelerator.max_memory_allocated()
        is_higher = peak > self._last_peak
        self._last_peak, self._has_risen = peak, self._has_risen or is_higher
        self._add(peak if is_higher else torch.accelerator.memory_allocated())

    def _add(self, num_bytes: int) -> None:
        part = _Part(self._is_forward, frozenset(self._needs), frozenset(self._zeroed))
        self._peaks[part] = max(num_bytes, self._peaks.get(part, 0))

    def _expect(self, optimizer: Optimizer, number: int) -> None:
        if self._held is None or _FURTHER in self._unknown:
            return
        device = _device()
        gradients = gradients_bytes(optimizer, device)
        if not gradients:  # it trains elsewhere
            return
        if len(self._needs) >= _MAX_OPTIMIZERS:
            self._unknown.append(_FURTHER)
            self._note(device)
            return
        self._read()
        now = torch.accelerator.memory_allocated()
        if not self._needs:
            before = self._held - self._input_bytes
            self.own_bytes = max(self._peaks.values()) - before if self._has_risen else None
            self._left_bytes = max(0, now - self._held - gradients)
        # It is there already if it was made with the optimizer, or loaded.
        there = sum(item.num_bytes for item in state_of(optimizer).values() if item.device == device.type)
        state = expected_state_bytes(optimizer, device)
        if state is None and not there:
            self._unknown.append(type(optimizer).__name__)
        self._state_bytes += max(state or 0, there)
        more = max(0, (state or 0) - there)
        self._needs[number] = _Needs(more + expected_closure_bytes(optimizer, device), gradients)
        self._add(now + more + expected_working_bytes(optimizer, device))
        self._note(device)

    def _note(self, device: torch.device) -> None:
        assert self._held is not None
        free = free_bytes()
        self._tape.note(
            MemoryExpected(
                device=device.type,
                peak_bytes=max(num + self._later_bytes(part) for part, num in self._peaks.items()),
                before_bytes=self._held - self._input_bytes,
                gradients_bytes=sum(item.gradients_bytes for item in self._needs.values()),
                state_bytes=self._state_bytes,
                limit_bytes=None if free is None else torch.accelerator.memory_allocated() + free,
                without_state=list(dict.fromkeys(self._unknown)),
            )
        )

    def _later_bytes(self, part: _Part) -> int:
        """Return what such a part of a later step holds in addition."""
        later = self._left_bytes if part.is_forward and not part.stepped else 0
        for number, needs in self._needs.items():
            if number not in part.stepped:
                is_there = number in self._kept or (number in self._zeroed and number not in part.zeroed)
                later += needs.state_bytes + is_there * needs.gradients_bytes
        return later


def _device() -> torch.device:
    """Return the device whose counters are read."""
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return torch.device(accelerator.type, torch.accelerator.current_device_index())
