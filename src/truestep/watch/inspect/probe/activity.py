"""Activity: how many units of a layer are dead or at the ends of their range for a whole batch.

Owns what is measured of each activation in one forward pass.
"""

from typing import Any

from torch import Tensor, nn

from truestep.watch.evidence.facts.passes import LayerActivity, LayerState
from truestep.watch.inspect.probe.copies import run
from truestep.watch.script.nested_tensors import find_tensors
from truestep.watch.script.tape import Tape

_RELUS = frozenset({"relu", "relu_", "clamp_min", "clamp_min_", "threshold", "hardtanh", "hardtanh_"})
_SQUASHES = {"tanh": 0.97, "tanh_": 0.97, "sigmoid": 0.985, "sigmoid_": 0.985}
_MIN_UNITS, _MIN_BATCH = 8, 8
_MAX_LAYERS = 64
_WEIGHING = frozenset({"addmm", "mm", "bmm", "baddbmm", "matmul", "linear", "convolution"})
"""What follows the last of these is the output: what squashes it may well be at its ends."""
_SAME = 1e-5
_MANY = 1 << 16
"""Values of a sample that are looked at together: scores of all words take much memory."""


class _Meter:
    def __init__(self, tape: Tape, size: int) -> None:
        self._sites = tape.sites
        self._outside = tape.sites.here(1)
        self._size = size
        self.num_operations = 0
        self.last_weighing = 0
        self.num_recurrent = 0
        """Recurrent layers that are under way: their gates are made to be at their ends."""
        self.layers: list[tuple[int, LayerState]] = []
        """After how many operations, and what was seen."""

    def enter(self, *_given: Any) -> None:
        """A recurrent layer is called."""
        self.num_recurrent += 1

    def leave(self, *_given: Any) -> None:
        """It is over."""
        self.num_recurrent -= 1

    def see(self, name: str, result: Any) -> None:
        """Measure what an activation gave."""
        self.num_operations += 1
        if name in _WEIGHING:
            self.last_weighing = self.num_operations
        if name not in _RELUS and name not in _SQUASHES:
            return
        if not isinstance(result, Tensor) or result.shape[:1] != (self._size,) or result.dim() < 2:
            return
        if len(self.layers) >= _MAX_LAYERS or not result.is_floating_point() or self.num_recurrent:
            return
        site = self._sites.here(1)
        dead, num_units = _dead(result) if name in _RELUS else (None, max(result.shape[1:]))
        layer = LayerState(
            operation=name.rstrip("_"),
            place=None if site == self._outside else self._sites.table[site],
            shape=tuple(result.shape),
            is_flat=_is_flat(result),
            num_units=num_units,
            dead=dead,
            saturated=_at_ends(result, name) if dead is None else None,
        )
        self.layers.append((self.num_operations, layer))


def _dead(result: Tensor) -> tuple[float, int]:
    """Return the share of units that are zero for the whole batch, and their number.

    With three axes channels may come second or last: the lower share counts.
    """
    axes = {1, result.dim() - 1} if result.dim() == 3 else {1}
    found = []
    for axis in axes:
        alive = (result.detach() > 0).transpose(0, axis).flatten(1).any(dim=1)
        found.append((1.0 - float(alive.double().mean()), alive.numel()))
    return min(found)


def _at_ends(result: Tensor, name: str) -> float:
    values = result.detach()
    values = values.abs() if name.startswith("tanh") else (2 * values - 1).abs()
    return float((values > _SQUASHES[name]).double().mean())


def _is_flat(result: Tensor) -> bool:
    """Whether all samples give the same."""
    values = result.detach().reshape(len(result), -1)
    spread = max(float(part.double().std(dim=0).max()) for part in values.split(_MANY, dim=1))
    return spread <= _SAME * (float(values.abs().max()) + 1e-12)


def measure(  # limits: private to this package
    tape: Tape, replica: nn.Module, model: int, given: tuple[Any, Any]
) -> LayerActivity | None:
    """Pass a batch through a copy in the model's own mode; None for batches that are too small."""
    inputs = [leaf for _, leaf in find_tensors(given)]
    first = inputs[0]
    if first.dim() < 2 or first.shape[0] < _MIN_BATCH:
        return None
    meter = _Meter(tape, first.shape[0])
    for module in replica.modules():
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            module.register_forward_pre_hook(meter.enter)
            module.register_forward_hook(meter.leave)
    output = run(replica, given, meter.see)
    results = [leaf for _, leaf in find_tensors(output) if leaf.is_floating_point()]
    result = next((leaf for leaf in results if leaf.shape[:1] == first.shape[:1]), None)
    is_collapsed = result is not None and not _is_flat(first) and _is_flat(result)
    inner = [layer for at, layer in meter.layers if at < meter.last_weighing]
    layers = [layer for layer in inner if layer.num_units >= _MIN_UNITS]
    return LayerActivity(model, first.shape[0], is_collapsed, layers)
