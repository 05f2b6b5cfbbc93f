"""Levels: evenly spaced values, as pixels and counts are, in what models are trained on and evaluated with.

Owns finding the spacing in the first float tensor of a few forward passes of each kind.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from truestep.watch.evidence.facts.loading import InputLevels
from truestep.watch.inspect.data.inputs import first_float
from truestep.watch.inspect.data.samples import array_of
from truestep.watch.script import parts
from truestep.watch.script.host import on_host
from truestep.watch.script.tape import Tape

_MAX_READ, _MAX_NOTED, _MAX_SCORED, _MAX_MODELS = 16_384, 3, 64, 16
_LEAST_VALUES, _LEAST_WIDTH = 256, 16
_LEAST_LEVELS, _MOST_LEVELS, _LEAST_REPEATS = 8, 256, 2
_CHANNELS = (1, 3, 4)
_TOLERANCE = 0.02
_NEAR = 0.05
"""Of its width: how far the limits of a batch may be from those of another one in the same scale."""


def watch(tape: Tape) -> None:
    """Note the levels of inputs: in training, and then in evaluation."""
    tape.listen(near=True, forward_begins=_Levels(tape).train)


class _Levels:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._num_trained: dict[int, int] = {}
        self._num_scored: dict[int, int] = {}
        """Of models that are trained on levels; others are not looked at in evaluation."""
        self._limits: dict[int, list[tuple[float, float]]] = {}
        """What was noted of a model in evaluation: it may be run on training data first."""

    def train(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (self._tape.is_looked_at and parts.is_training(module) and torch.is_grad_enabled()):
            return
        number = self._tape.number("model", module)
        num = self._num_trained.get(number, 0)
        if num >= _MAX_NOTED or len(self._num_trained) >= _MAX_MODELS:
            return
        facts = self._note(number, True, args or kwargs)
        self._num_trained[number] = num + 1
        if facts is not None and facts.spacing and number not in self._num_scored:
            if not self._num_scored:
                self._tape.listen(forward_begins=self.score)
            self._num_scored[number] = 0

    def score(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled() and parts.is_training(module):
            return
        number = self._tape.number("model", module)
        num = self._num_scored.get(number, _MAX_SCORED)
        known = self._limits.setdefault(number, [])
        if num < _MAX_SCORED and len(known) < _MAX_NOTED:
            self._num_scored[number] = num + 1
            facts = self._note(number, False, args or kwargs, known)
            if facts is not None:
                known.append((facts.lowest, facts.highest))
            if min(self._num_scored.values()) >= _MAX_SCORED:
                self._tape.ignore(self.score)

    def _note(  # limits: private to this class
        self, number: int, is_trained: bool, given: Any, known: Sequence[tuple[float, float]] = ()
    ) -> InputLevels | None:
        tensor = None if torch.compiler.is_compiling() else first_float(given)
        if tensor is None or not (tensor.is_cpu or self._tape.is_looked_at):  # the script would wait
            return None
        facts = _read(number, is_trained, tensor, known)
        if facts is not None:
            self._tape.note(facts)
        return facts


def _read(  # limits: private to this module
    model: int, is_trained: bool, tensor: Tensor, known: Sequence[tuple[float, float]]
) -> InputLevels | None:
    """Return the levels of an input with limits that are not known yet; of pictures those of one channel."""
    if tensor.dim() == 4 and tensor.shape[1] in _CHANNELS:
        tensor = tensor[:, 0]
    if tensor.numel() < _LEAST_VALUES or tensor.dtype is torch.float16:
        return None
    rows = array_of(on_host(tensor)).reshape(len(tensor), -1)
    if rows.shape[1] < _LEAST_WIDTH or bool((rows[1:] == rows[0]).all()):
        return None  # coordinates are evenly spaced too
    values = rows.reshape(-1)
    lowest, highest = float(values.min()), float(values.max())
    if not np.isfinite(lowest) or not np.isfinite(highest):
        return None
    near = _NEAR * (highest - lowest)
    if any(abs(lowest - one) <= near and abs(highest - other) <= near for one, other in known):
        return None
    some = values[:: -(-len(values) // _MAX_READ) | 1].astype(np.float64)
    return InputLevels(model, is_trained, list(tensor.shape), lowest, highest, _spacing(some))


def _spacing(values: Any) -> float:
    """Return the distance of neighbouring values; 0 if they are not evenly spaced, or too few or many."""
    found = np.unique(values)
    if not _LEAST_LEVELS <= len(found) <= min(_MOST_LEVELS, len(values) / _LEAST_REPEATS):
        return 0.0
    steps = np.diff(found)
    spacing = float(steps.min())
    places = (found - found[0]) / spacing
    is_even = bool((np.abs(places - np.round(places)) < _TOLERANCE).all())
    return spacing if is_even and places[-1] < _MOST_LEVELS else 0.0
