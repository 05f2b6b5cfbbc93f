"""Levels: evenly spaced values, as pixels and counts are, in what models are trained on and evaluated with.

Owns finding the spacing in the first float tensor of a few forward passes of each kind.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from truestep.watch.evidence.facts.loading import InputLevels
from truestep.watch.inspect.data.inputs import first_float
from truestep.watch.inspect.data.samples import array_of
from truestep.watch.script.host import on_host
from truestep.watch.script.tape import Tape

_MAX_READ, _MAX_NOTED, _MAX_KINDS = 16_384, 3, 32
_LEAST_VALUES, _LEAST_WIDTH = 256, 16
_LEAST_LEVELS, _MOST_LEVELS, _LEAST_REPEATS = 8, 256, 2
_CHANNELS = (1, 3, 4)
_TOLERANCE = 0.02


def watch(tape: Tape) -> None:
    """Note the levels of inputs: in training, and without gradients in evaluation."""
    noted: dict[tuple[int, bool], int] = {}

    def forward_begins(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        is_trained = torch.is_grad_enabled()
        if is_trained and not (tape.is_looked_at and module.training):
            return
        key = (tape.number("model", module), is_trained)
        if noted.get(key, 0) >= _MAX_NOTED or len(noted) >= _MAX_KINDS or torch.compiler.is_compiling():
            return
        tensor = first_float(args or kwargs)
        if tensor is not None and (tensor.is_cpu or tape.is_looked_at):  # else the script would wait
            noted[key] = noted.get(key, 0) + 1
            facts = _read(*key, tensor)
            if facts is not None:
                tape.note(facts)

    tape.listen(forward_begins=forward_begins)


def _read(model: int, is_trained: bool, tensor: Tensor) -> InputLevels | None:
    """Return the levels of an input; of pictures, whose channels may differ in scale, those of the first."""
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
