"""Windows of a series: samples of one loader that are samples of another one, moved by one place.

Owns digests of samples without their first and without their last place, of the first epoch of each loader.
Reads batches on the CPU.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from truestep.watch.evidence.facts.loading import WindowsOverlap
from truestep.watch.inspect.data.samples import array_of, digest_array, find_parts
from truestep.watch.script.tape import Tape

_MAX_SAMPLES, _MAX_WIDTH = 2048, 256
_LEAST_PLACES, _LEAST_DISTINCT = 6, 6
_LEAST_SHARED, _LEAST_OWN = 8, 0.99


def watch(tape: Tape) -> None:
    """Note which loaders hand out windows of the same series."""
    tape.attend(_Series(tape), "epoch", "batch", "closing")


@dataclass
class _Windows:
    num_samples: int = 0
    num_epochs: int = 0
    is_series: bool = True
    starts: list[int] = field(default_factory=list)
    """Digests of each sample without its last place, and without its first."""
    ends: list[int] = field(default_factory=list)


class _Series:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._windows: dict[int, _Windows] = {}

    def epoch(self, _loader: Any, number: int) -> None:
        self._windows.setdefault(number, _Windows()).num_epochs += 1

    def batch(self, number: int, batch: Any) -> None:
        windows = self._windows.get(number)
        is_kept = windows is not None and windows.num_epochs == 1 and windows.num_samples < _MAX_SAMPLES
        if windows is None or not windows.is_series or not is_kept:
            return
        inputs, _ = find_parts(batch)
        digests = None if inputs is None else _digest(inputs)
        if digests is None:
            windows.is_series = False
            return
        windows.num_samples += len(digests[0])
        windows.starts += digests[0]
        windows.ends += digests[1]

    def closing(self) -> None:
        known = [(number, item) for number, item in self._windows.items() if _is_series(item)]
        for number, item in known:
            for other, others in known:
                if other == number:
                    continue
                starts, ends = set(others.starts), set(others.ends)
                pairs = zip(item.starts, item.ends, strict=True)
                num = sum(start in ends or end in starts for start, end in pairs)
                if num >= _LEAST_SHARED:
                    self._tape.note(WindowsOverlap(number, other, item.num_samples, num))


def _is_series(windows: _Windows) -> bool:
    """Whether all samples differ: patterns that are drawn at a few places come again, windows do not."""
    num = windows.num_samples if windows.is_series else 0
    return num > 0 and min(len(set(windows.starts)), len(set(windows.ends))) >= _LEAST_OWN * num


def _digest(inputs: Tensor) -> tuple[list[int], list[int]] | None:
    """Return digests of each sample without its last place and without its first; None if it has no places.

    A constant start or end is in many samples, and so is one of few different numbers.
    """
    shape = inputs.shape
    if not inputs.is_floating_point() or inputs.dim() not in (2, 3) or inputs.element_size() < 4:
        return None
    is_plain = inputs.dim() == 2 or shape[1] == 1
    values = array_of(inputs).reshape(len(inputs), *((-1, 1) if is_plain else shape[1:]))
    places = values.shape[1]
    if places < _LEAST_PLACES or values[0].size > _MAX_WIDTH:
        return None
    if any(len(np.unique(row)) < _LEAST_DISTINCT for row in values[:_LEAST_DISTINCT]):
        return None
    return digest_array(values[:, :-1]), digest_array(values[:, 1:])
