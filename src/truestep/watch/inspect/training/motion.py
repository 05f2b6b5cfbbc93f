"""Motion: how large gradients, weights and updates are at some steps.

Owns the sample of parameters that is measured.
"""

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from truestep.watch.evidence.facts.optimizing import MatrixUpdate, UpdateMeasured
from truestep.watch.inspect.training.names import Names
from truestep.watch.script import module_tree
from truestep.watch.script.host import on_host
from truestep.watch.script.tape import Tape

_MAX_PARAMETERS, _MAX_NUMEL, _MIN_NUMEL = 12, 1 << 16, 16


def watch(tape: Tape) -> None:
    """Measure at the steps that are looked at."""
    tape.listen(_Motion(tape), "step_begins", "step_ends", close_look=True)


@dataclass
class _Before:
    """A few matrices of an optimizer as they are before its step."""

    weights: list[Tensor] = field(default_factory=list)
    copies: list[Tensor] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)


class _Motion:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._names = Names(tape)
        self._before: dict[int, _Before] = {}

    def step_begins(self, optimizer: Optimizer, number: int) -> None:
        if not self._tape.is_looked_at:
            return
        usable = [item for group in optimizer.param_groups for item in group["params"] if _is_usable(item)]
        spread = module_tree.spread(usable, _MAX_PARAMETERS)
        if not spread:
            return
        with torch.no_grad():
            self._before[number] = _Before(
                weights=spread,
                copies=[item.detach().clone() for item in spread],
                gradients=[_rms(item.grad) for item in spread],
            )

    def step_ends(self, _optimizer: Optimizer, number: int) -> None:
        before = self._before.pop(number, None)
        if before is None:
            return
        with torch.no_grad():
            rows = zip(before.weights, before.copies, before.gradients, strict=True)
            matrices = [
                MatrixUpdate(
                    name=self._names.of(item),
                    gradient=gradient,
                    weight=_rms(old),
                    update=_rms(item.detach() - old),
                )
                for item, old, gradient in rows
            ]
        if all(isfinite(size) for row in matrices for size in (row.gradient, row.weight, row.update)):
            self._tape.note(UpdateMeasured(number, matrices))


def _is_usable(item: Tensor) -> bool:
    """Whether it is a matrix of moderate size with a gradient; vectors start at zero or one, as a rule."""
    return (
        item.dim() > 1
        and _MIN_NUMEL <= item.numel() <= _MAX_NUMEL
        and not item.is_meta
        and type(item.grad) is Tensor
        and not item.grad.is_sparse
        and item.is_floating_point()
    )


def _rms(values: Any) -> float:
    return float(on_host(values.detach()).double().square().mean().sqrt())
