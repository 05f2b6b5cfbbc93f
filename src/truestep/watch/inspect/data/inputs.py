"""What models are fed: the range of the first float tensor of a forward pass, and how its values are spaced.

Owns the reading of input values: in training at the steps that are looked at, in evaluation for models that
are trained on evenly spaced values, as pixels and counts are.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from truestep.watch.evidence.facts.loading import InputMeasured, Levels, Spread
from truestep.watch.inspect.data.samples import array_of
from truestep.watch.script import module_tree
from truestep.watch.script.host import on_host
from truestep.watch.script.nested_tensors import find_tensors
from truestep.watch.script.tape import Tape

_MAX_READ, _MAX_NOTED = 4096, 24
_READABLE = (torch.float32, torch.float64, torch.float16)
_MAX_SPACED, _MAX_LISTED, _MAX_SCORED, _MAX_MODELS = 16_384, 3, 64, 16
_LEAST_VALUES, _LEAST_WIDTH = 256, 16
_LEAST_LEVELS, _MOST_LEVELS, _LEAST_REPEATS = 8, 256, 2
_CHANNELS = (1, 3, 4)
_TOLERANCE = 0.02
_NEAR = 0.05
"""Of its width: how far the limits of a batch may be from those of another one in the same scale."""


def watch(tape: Tape) -> None:
    """Note inputs of models: in training, and then in evaluation."""
    tape.listen(close_look=True, forward_begins=_Inputs(tape).train)


class _Inputs:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._num_trained: dict[int, int] = {}
        self._num_scored: dict[int, int] = {}
        """Of models that are trained on levels; others are not looked at in evaluation."""
        self._known: dict[int, list[Levels]] = {}
        """What was noted of a model in evaluation: it may be run on training data first."""

    def train(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._tape.is_looked_at or not torch.is_grad_enabled():
            return
        number = self._tape.number("model", module)
        num = self._num_trained.get(number, 0)
        tensor = _first_float(args or kwargs) if num < _MAX_NOTED else None
        if tensor is None or isinstance(module, nn.modules.loss._Loss):
            return
        self._num_trained[number] = num + 1
        is_trained = module_tree.is_training(module)
        levels = _levels(tensor) if is_trained and num < _MAX_LISTED else None
        self._tape.note(_measure(number, is_trained, tensor, levels))
        is_new = number not in self._num_scored and len(self._num_scored) < _MAX_MODELS
        if levels is not None and levels.spacing and is_new:
            if not self._num_scored:
                self._tape.listen(forward_begins=self.score)
            self._num_scored[number] = 0

    def score(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled() and module_tree.is_training(module):
            return
        number = self._tape.number("model", module)
        num, known = self._num_scored.get(number, _MAX_SCORED), self._known.setdefault(number, [])
        if num >= _MAX_SCORED or len(known) >= _MAX_LISTED:
            return
        self._num_scored[number] = num + 1
        tensor = _first_float(args or kwargs)
        if tensor is not None and (tensor.is_cpu or self._tape.is_looked_at):  # or the script would wait
            levels = _levels(tensor)
            if levels is not None and not any(_are_near(levels, other) for other in known):
                known.append(levels)
                self._tape.note(_measure(number, False, tensor, levels))
        if min(self._num_scored.values()) >= _MAX_SCORED:
            self._tape.ignore(self.score)


def _first_float(values: Any) -> Tensor | None:
    """Return the first tensor if it is of floats: ids that come first mean that floats are something else."""
    if torch.compiler.is_compiling():
        return None
    for _, leaf in find_tensors(values):
        is_plain = type(leaf) is Tensor and leaf.layout is torch.strided and not leaf.is_meta
        is_fed = leaf.dtype in _READABLE and not leaf.requires_grad and leaf.grad_fn is None
        is_table = leaf.dim() >= 2 and leaf.numel() > 0 and not leaf.is_neg()
        return leaf if is_plain and is_fed and is_table else None
    return None


def _measure(  # limits: private to this module
    model: int, is_trained: bool, tensor: Tensor, levels: Levels | None
) -> InputMeasured:
    """Return the range of some of the values; those that are not finite are looked for in all of them."""
    values = array_of(on_host(tensor)).reshape(-1)
    num_infinite = num_nan = 0
    with np.errstate(all="ignore"):
        is_finite = bool(np.isfinite(values.sum()))
    if not is_finite:
        num_infinite, num_nan = int(np.isinf(values).sum()), int(np.isnan(values).sum())
    some = values[:: -(-len(values) // _MAX_READ)].astype(np.float64)
    some = some if is_finite else some[np.isfinite(some)]
    spread = None
    if len(some):
        all_of_them = values if is_finite else some  # the few that are not zero may be missed in some
        low, high = float(all_of_them.min()), float(all_of_them.max())
        spread = Spread(low, high, float(some.mean()), float(some.std()))
    return InputMeasured(model, is_trained, list(tensor.shape), num_infinite, num_nan, spread, levels)


def _levels(tensor: Tensor) -> Levels | None:
    """Return the levels of an input, of pictures those of one channel; None if it is too small."""
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
    some = values[:: -(-len(values) // _MAX_SPACED) | 1].astype(np.float64)
    return Levels(lowest, highest, _spacing(some))


def _are_near(one: Levels, other: Levels) -> bool:
    near = _NEAR * (one.highest - one.lowest)
    return abs(one.lowest - other.lowest) <= near and abs(one.highest - other.highest) <= near


def _spacing(values: npt.NDArray[np.float64]) -> float:
    """Return the distance of neighbouring values; 0 if they are not evenly spaced, or too few or many."""
    found = np.unique(values)
    if not _LEAST_LEVELS <= len(found) <= min(_MOST_LEVELS, len(values) / _LEAST_REPEATS):
        return 0.0
    steps = np.diff(found)
    spacing = float(steps.min())
    places = (found - found[0]) / spacing
    is_even = bool((np.abs(places - np.round(places)) < _TOLERANCE).all())
    return spacing if is_even and places[-1] < _MOST_LEVELS else 0.0
