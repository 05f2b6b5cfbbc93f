"""What the operations of a step show: the first that is not finite or extreme, and ranges of activations.

Owns comparing a step with the one before. Values of large tensors are sampled: an extreme one can be missed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from truestep.watch import Operation, Process, values_of

_FAR = 100.0
"""How much larger than in the step before the largest value of an operation is to be called extreme."""
_LEAST = 1e-3
_PHASES = ("data", "forward", "backward", "other")


@dataclass(frozen=True, kw_only=True)
class ExtremeValue:
    """The largest value that an operation gave, and where that is."""

    name: str
    file: str | None
    line: int | None
    module: str
    phase: str
    largest: float
    before: float | None
    """The largest value that it gave in the step before."""


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What was seen."""

    nonfinite: ExtremeValue | None = None
    extreme: ExtremeValue | None = None
    activations: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The smallest and the largest value that each module computed."""
    num_operations: int = 0

    def with_files(self, original: Callable[[str], str]) -> "Sight":
        """Return it with the names of the user's own files."""

        def renamed(place: ExtremeValue | None) -> ExtremeValue | None:
            if place is None or place.file is None:
                return place
            return replace(place, file=original(place.file))

        return replace(self, nonfinite=renamed(self.nonfinite), extreme=renamed(self.extreme))

    def as_fields(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "first_nonfinite": None if self.nonfinite is None else vars(self.nonfinite),
            "first_extreme": None if self.extreme is None else vars(self.extreme),
            "activations": {name: list(bounds) for name, bounds in self.activations.items()},
            "operations": self.num_operations,
        }


def find_sights(process: Process, step: int) -> Sight:
    """Return what is to be seen in the operations of a step, beside those of the step before."""
    own = [item for item in process.operations if item.step == step and item.phase in _PHASES]
    before = [item for item in process.operations if item.step == step - 1 and item.phase in _PHASES]
    earlier = {(key, number): item for key, number, item in _numbered(before)}
    nonfinite = extreme = None
    activations: dict[str, tuple[float, float]] = {}
    for key, number, operation in _numbered(own):
        bounds = _bounds(process, operation)
        if bounds is None:
            continue
        low, high = bounds
        largest = max(abs(low), abs(high))
        if not np.isfinite(largest):
            nonfinite = nonfinite or _place(operation, largest, None)
            continue
        if operation.phase == "forward" and operation.module:
            least, most = activations.get(operation.module, (low, high))
            activations[operation.module] = (min(least, low), max(most, high))
        if extreme is None and (key, number) in earlier:
            usual = _largest(_bounds(process, earlier[key, number]))
            if usual is not None and largest > _FAR * max(usual, _LEAST):
                extreme = _place(operation, largest, usual)
    return Sight(nonfinite=nonfinite, extreme=extreme, activations=activations, num_operations=len(own))


def _numbered(operations: list[Operation]) -> list[tuple[tuple[Any, ...], int, Operation]]:
    """Return operations with their line and name, and how often that came before in the step."""
    counts: dict[tuple[Any, ...], int] = {}
    found = []
    for item in operations:
        key = (item.phase, item.name, item.file, item.line, item.module)
        counts[key] = counts.get(key, -1) + 1
        found.append((key, counts[key], item))
    return found


def _bounds(process: Process, operation: Operation) -> tuple[float, float] | None:
    """Return the smallest and the largest value that an operation gave; None if nothing was kept of them."""
    lows, highs = [], []
    for number, out in enumerate(operation.outs):
        if not out.dtype.startswith(("float", "bfloat")):
            continue
        values = values_of(process, operation, number)
        if values is not None and values.size:
            wide = values.astype(np.float64)
            lows.append(float(wide.min()))  # NaN if one is
            highs.append(float(wide.max()))
    return (float(np.min(lows)), float(np.max(highs))) if lows else None


def _largest(bounds: tuple[float, float] | None) -> float | None:
    if bounds is None or not np.isfinite(bounds).all():
        return None
    return max(abs(bounds[0]), abs(bounds[1]))


def _place(operation: Operation, largest: float, before: float | None) -> ExtremeValue:
    is_backward = operation.phase == "backward" and operation.forward_line is not None
    return ExtremeValue(
        name=operation.name,
        file=operation.forward_file if is_backward else operation.file,
        line=operation.forward_line if is_backward else operation.line,
        module=(operation.forward_module if is_backward else operation.module) or "",
        phase=operation.phase,
        largest=largest,
        before=before,
    )
