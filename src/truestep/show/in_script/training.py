"""What belongs to a line without being assigned there: gradients of a backward pass, updates of a step.

Also owns which values a loss was computed from. Keeps no value alive.
"""

import sys
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from truestep.watch.script.tape import Tape

_MAX_NODES = 20_000
_MAX_LAYERS = 12
_MAX_SAMPLED = 4096
_MAX_FOLLOWED = 4096


class Recorder(Protocol):
    """Notes values at lines."""

    @property
    def is_open(self) -> bool:
        """Whether lines are followed now."""

    def line_of(self, frame: FrameType | None) -> Any:
        """Return the entry of the innermost followed line, from a frame outwards; None if there is none."""

    def add(self, line: Any, *, label: str, value: Any) -> None:
        """Add a value that belongs to a line without being assigned there."""

    def own_time(self) -> AbstractContextManager[None]:
        """Count the time that this takes as ours, not as the line's."""


class Training:
    """Follows the passes and steps of a recorded script."""

    def __init__(self, tape: Tape, recording: Recorder) -> None:
        self._tape = tape
        self._recording = recording
        self._names: dict[int, str] = {}
        self._followed: list[tuple[weakref.ref[Tensor], Any]] = []
        self._before: dict[int, list[Tensor]] = {}
        self.step_lines: list[tuple[str, int]] = []
        """File and line of each call of `step` that was seen."""

    def begin(self) -> None:
        """Listen to passes and steps."""
        self._tape.listen(
            forward_begins=self._learn_names,
            backward_begins=self._mark_reached,
            backward_ends=self._note_gradients,
            step_begins=self._keep_sample,
            step_ends=self._note_update,
            counted=self._end_step,
        )

    def follow(self, value: Tensor, entry: Any) -> None:
        """Ask at the next backward pass whether the loss was computed from a value."""
        if len(self._followed) < _MAX_FOLLOWED:
            self._followed.append((weakref.ref(value), entry))

    def _learn_names(self, module: nn.Module, *_: Any) -> None:
        if self._recording.is_open:
            self._names |= {id(value): name for name, value in module.named_parameters()}

    def _mark_reached(self, losses: Iterable[Tensor], _how: str) -> None:
        if not self._recording.is_open:
            return
        with self._recording.own_time():
            nodes = _nodes_below(losses)
            if nodes is None:  # too many to be sure
                for _, entry in self._followed:
                    entry.reaches = True
                return
            for reference, entry in self._followed:
                value = reference()
                if value is not None and not entry.reaches:
                    entry.reaches = value.grad_fn in nodes

    def _end_step(self) -> None:
        self._followed.clear()

    def _note_gradients(self, *_: Any) -> None:
        line = self._recording.line_of(sys._getframe(1)) if self._recording.is_open else None
        if line is None:
            return
        with self._recording.own_time():
            for layer, norm in self._norms().items():
                self._recording.add(line, label=f"‖grad‖ {layer}", value=norm)

    def _norms(self) -> dict[str, float]:
        squares: dict[str, float] = {}
        for parameter, name in self._parameters():
            if parameter.grad is not None and parameter.grad.layout is torch.strided:
                layer = name.rpartition(".")[0] or name
                norm = float(torch.linalg.vector_norm(parameter.grad.detach().float()))
                squares[layer] = squares.get(layer, 0.0) + norm**2
        if len(squares) > _MAX_LAYERS:
            named = list(squares.items())
            kept = [*named[: _MAX_LAYERS // 2], *named[-_MAX_LAYERS // 2 :]]
            squares = dict(kept)
        return {layer: square**0.5 for layer, square in squares.items()}

    def _parameters(self) -> list[tuple[Tensor, str]]:
        found: dict[int, tuple[Tensor, str]] = {}
        for _, kept in self._tape.things("optimizer").values():
            optimizer = kept() if callable(kept) else kept
            if isinstance(optimizer, Optimizer):
                for group in optimizer.param_groups:
                    for value in group["params"]:
                        found[id(value)] = (value, self._names.get(id(value), "parameters"))
        return list(found.values())

    def _keep_sample(self, optimizer: Optimizer, number: int) -> None:
        if self._recording.is_open:
            with self._recording.own_time(), torch.no_grad():
                self._before[number] = [_sample(value).clone() for value in _values(optimizer)]

    def _note_update(self, optimizer: Optimizer, number: int) -> None:
        before = self._before.pop(number, None)
        line = self._recording.line_of(sys._getframe(1)) if self._recording.is_open else None
        if before is None or line is None:
            return
        with self._recording.own_time(), torch.no_grad():
            place = self._tape.sites.table[self._tape.sites.here(1)]
            if (place.file, place.line) not in self.step_lines:
                self.step_lines.append((place.file, place.line))
            moved = weight = 0.0
            for old, value in zip(before, _values(optimizer), strict=False):
                moved += float((_sample(value).float() - old.float()).square().sum())
                weight += float(old.float().square().sum())
            if weight:
                self._recording.add(line, label="update/weight", value=(moved / weight) ** 0.5)
            rates = list(
                dict.fromkeys(float(group["lr"]) for group in optimizer.param_groups if "lr" in group)
            )
            for index, rate in enumerate(rates[:3]):
                self._recording.add(line, label="lr" if len(rates) == 1 else f"lr {index}", value=rate)


def _values(optimizer: Optimizer) -> list[Tensor]:
    return [
        value.detach()
        for group in optimizer.param_groups
        for value in group["params"]
        if value.layout is torch.strided and value.is_floating_point()
    ]


def _sample(value: Tensor) -> Tensor:
    flat = value.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _MAX_SAMPLED)][:_MAX_SAMPLED]


def _nodes_below(losses: Iterable[Tensor]) -> set[Any] | None:
    """Return the autograd nodes below the losses; None if there are too many."""
    waiting = [item.grad_fn for item in losses if isinstance(item, Tensor) and item.grad_fn is not None]
    found: set[Any] = set(waiting)
    while waiting:
        node = waiting.pop()
        for below, _ in node.next_functions:
            if below is not None and below not in found:
                found.add(below)
                waiting.append(below)
        if len(found) > _MAX_NODES:
            return None
    return found
