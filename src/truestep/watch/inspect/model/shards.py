"""Sharded models: what they were before they were sharded, and by what their gradients are multiplied.

Owns what one process can know of its own shard. Other processes are asked nothing: rules compare.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from truestep.watch.digests.fold import fold
from truestep.watch.evidence.facts.surroundings import ModelSharded, ShardScaled
from truestep.watch.script import parts
from truestep.watch.script.refs import Ref
from truestep.watch.script.tape import Tape

_MAX_PARAMETERS = 8
_SAME = 1e-4
"""By how much factors of elements may differ and still be one factor: gradients may have 16 bits."""


def watch(tape: Tape) -> None:
    """Observe sharded gradients between a backward pass and the step that applies them."""
    if torch.distributed.is_available():
        tape.attend(_Shards(tape), "backward_ends", "step_begins", near=True)


def note_sharded(tape: Tape, model: Any) -> None:
    """A model is about to be sharded: note its parameters, which should be alike on all ranks."""
    if isinstance(model, nn.Module) and tape.plan.inspect:
        named = [(name, item) for name, item in parts.named_parameters(model) if parts.is_plain(item)]
        named = [(name, item) for name, item in named if item.is_cpu]
        if named:
            digests = {name: fold([(name, item)]) for name, item in named}
            tape.note(ModelSharded(type(model).__qualname__, digests))


@dataclass(frozen=True, kw_only=True)
class _Element:
    """One element of a gradient's shard, after the backward pass."""

    parameter: Any
    index: int
    value: float


class _Shards:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._parameters: dict[int, list[Any]] = {}
        """By optimizer: some sharded parameters."""
        self._elements: dict[int, list[_Element]] = {}

    def backward_ends(self, _losses: tuple[Tensor, ...], _how: str) -> None:
        for number, references in self._parameters.items():
            found = [element for item in references for element in _elements(item)]
            self._elements[number] = found

    def step_begins(self, optimizer: Optimizer, number: int) -> None:
        if number not in self._parameters:
            sharded = [
                item for group in optimizer.param_groups for item in group["params"] if _is_sharded(item)
            ]
            self._parameters[number] = [Ref(item) for item in parts.spread(sharded, _MAX_PARAMETERS)]
        factor = _factor(self._elements.pop(number, []))
        if factor is not None:
            self._tape.note(ShardScaled(number, factor))


def _is_sharded(item: Any) -> bool:
    return any(getattr(place, "is_shard", bool)() for place in getattr(item, "placements", ()))


def _local(reference: Any) -> Tensor | None:
    parameter = reference()
    grad = None if parameter is None else parameter.grad
    local = getattr(grad, "_local_tensor", None)
    is_readable = isinstance(local, Tensor) and local.device.type == "cpu" and local.numel() > 1
    return local.detach().reshape(-1) if isinstance(local, Tensor) and is_readable else None


def _elements(reference: Any) -> list[_Element]:
    """Return the largest element of a shard, and the smallest but zero: clipping by value changes one."""
    local = _local(reference)
    if local is None:
        return []
    sizes = local.abs()
    if not bool(sizes.max() > 0):
        return []
    small = torch.where(sizes > 0, sizes, torch.inf)
    places = {int(sizes.argmax()), int(small.argmin())}
    return [_Element(parameter=reference, index=place, value=float(local[place])) for place in sorted(places)]


def _factor(elements: list[_Element]) -> float | None:
    """Return the one factor that all elements were multiplied by since; None if there is not one."""
    ratios = []
    for item in elements:
        local = _local(item.parameter)
        if local is not None and item.index < local.numel():
            ratios.append(float(local[item.index]) / item.value)
    if not ratios or not all(math.isfinite(ratio) for ratio in ratios):
        return None
    is_one = max(ratios) - min(ratios) <= _SAME * abs(ratios[0])
    return ratios[0] if is_one else None
