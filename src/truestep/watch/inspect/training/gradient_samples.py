"""Spots: where the gradient of a parameter is largest, and the weight there.

Owns telling by them whether gradients were multiplied or zeroed, and whether weights have moved.
"""

import math
import weakref
from dataclasses import dataclass

from torch import Tensor

from truestep.watch.script import module_tree
from truestep.watch.script.refs import Ref

_MAX_SPOTS, _MAX_NUMEL = 4, 1 << 20


@dataclass(frozen=True, eq=False, kw_only=True)
class Spot:
    """The largest gradient of a parameter, and the weight there."""

    reference: "weakref.ref[Tensor]"
    index: int
    gradient: float
    weight: float

    def gradient_now(self) -> float:
        """Return the gradient there now."""
        parameter = self.reference()
        grad = None if parameter is None else parameter.grad
        return 0.0 if grad is None else _at(grad, self.index)

    @property
    def has_moved(self) -> bool:
        """Whether the weight is another one there now; one whose memory was given back is not read."""
        parameter = self.reference()
        return parameter is not None and is_usable(parameter) and _at(parameter, self.index) != self.weight


def is_usable(parameter: Tensor) -> bool:
    """Whether it has values, of which not too many: one that is sharded has none between passes."""
    is_small = module_tree.is_plain(parameter) and 0 < parameter.numel() <= _MAX_NUMEL
    return is_small and parameter.untyped_storage().size() > 0


def find_spots(parameters: list[Tensor], *, most: int = _MAX_SPOTS) -> list[Spot]:
    """Return the spots of some parameters that have gradients."""
    usable = [item for item in parameters if is_usable(item) and module_tree.is_plain(item.grad)]
    found = [
        _spot(item, int(item.grad.detach().abs().argmax()))
        for item in module_tree.spread(usable, most)
        if item.grad is not None
    ]
    return [spot for spot in found if spot.gradient]


def find_weights(parameters: list[Tensor], *, most: int) -> list[Spot]:
    """Return the largest weights of some parameters, which need no gradients."""
    usable = [item for item in parameters if is_usable(item)]
    return [_spot(item, int(item.detach().abs().argmax())) for item in module_tree.spread(usable, most)]


def read_again(spots: list[Spot]) -> list[Spot]:
    """Return what is there now."""
    found = [(spot.reference(), spot.index) for spot in spots]
    return [_spot(parameter, index) for parameter, index in found if parameter is not None]


def factor_of(spots: list[Spot]) -> float | None:
    """Return by how much gradients were multiplied since they were last read; None if they were not."""
    ratios = [spot.gradient_now() / spot.gradient for spot in spots if spot.gradient]
    changed = [ratio for ratio in ratios if ratio != 1.0]
    return changed[0] if changed and math.isfinite(changed[0]) else None


def _spot(parameter: Tensor, index: int) -> Spot:
    grad = parameter.grad
    gradient = 0.0 if grad is None else _at(grad, index)
    return Spot(reference=Ref(parameter), index=index, gradient=gradient, weight=_at(parameter, index))


def _at(tensor: Tensor, index: int) -> float:
    found = tensor.detach().reshape(-1)[index].item()
    return float(found.real + found.imag)
