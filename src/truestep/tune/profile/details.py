"""What torch.profiler's pieces add up to: shares of lines and modules.

Owns the sums. The profiler makes Python slower, so a piece counts as a part of its phase, and each phase as
what it took in the steps that were only timed.
"""

import linecache
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from truestep.tune.knob import PHASES
from truestep.tune.profile.phases import DETAILS, Span, cut
from truestep.watch import Moment
from truestep.watch.evidence.facts.surroundings import HostWaited

_LEAST_SHARE = 0.01
_BACKWARD, _FORWARD = PHASES.index("backward"), PHASES.index("forward")
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class LineShare:
    """A line of the user's own code, and the share of a step that goes to it and to what it calls."""

    file: str
    line: int
    source: str
    share: float
    backward: float
    """What the gradients of its results take: spent on the line that calls `backward`, not on this one."""
    function: str
    """Empty, or the function whose own Python between calls this is; then the line is where it begins."""


@dataclass(frozen=True, kw_only=True)
class ModuleShare:
    """A module of the model, with all that is in it."""

    name: str
    kind: str
    """The class."""
    forward: float
    backward: float
    own: float
    """Both, without what its submodules take."""


@dataclass(frozen=True, kw_only=True)
class Details:
    """What only torch.profiler can tell."""

    lines: tuple[LineShare, ...] = ()
    modules: tuple[ModuleShare, ...] = ()


def sum_up(
    path: Path,
    raw: Mapping[str, Any],
    *,
    moments: Sequence[Moment[Any]],
    shares: Mapping[str, float],
    original: Callable[[str], str],
) -> Details:
    """Return the shares of lines and modules; `shares` are those of the phases."""
    marks = [
        item.at_s for item in moments if isinstance(item.facts, HostWaited) and item.facts.how == DETAILS
    ]
    if "details" not in raw or len(marks) < 2 or not path.exists():
        return Details()
    with np.load(path) as file:
        pieces: Numbers = file["pieces"]
    spans = cut(moments, begin_s=marks[0], end_s=marks[1])
    took, phases = _place(pieces, spans)
    weights = _weights(took, phases, shares)
    return Details(
        lines=_lines(pieces, weights, raw["lines"], original),
        modules=_modules(pieces, weights, phases, raw["modules"]),
    )


def source_of(file: str, line: int) -> str:
    """Return a line as it was run, without its indentation; nothing if there is none."""
    return linecache.getline(file, line).strip()


def _place(pieces: Numbers, spans: Sequence[Span]) -> tuple[npt.NDArray[np.float64], Numbers]:
    """Return how long each piece took inside the traced steps, and the number of its phase."""
    end_s = spans[-1].end_s
    begin, end = np.clip(pieces[:, 0] / 1e9, 0, end_s), np.clip(pieces[:, 1] / 1e9, 0, end_s)
    starts = np.array([span.begin_s for span in spans])
    names = np.array([PHASES.index(span.phase) for span in spans])
    index = np.searchsorted(starts, (begin + end) / 2, side="right") - 1
    return end - begin, names[np.clip(index, 0, len(spans) - 1)]


def _weights(
    took: npt.NDArray[np.float64], phases: Numbers, shares: Mapping[str, float]
) -> npt.NDArray[np.float64]:
    """Return each piece's share of a step."""
    totals = np.bincount(phases, weights=took, minlength=len(PHASES))
    wanted = np.array([shares.get(name, 0.0) for name in PHASES])
    factors = np.divide(wanted, totals, out=np.zeros_like(wanted), where=totals > 0)
    result: npt.NDArray[np.float64] = took * factors[phases]
    return result


def _sums(numbers: Numbers, weights: npt.NDArray[np.float64], num: int) -> list[float]:
    """Return the sum of weights for each row of a table; -1 is no row."""
    return [float(value) for value in np.bincount(numbers + 1, weights=weights, minlength=num + 1)[1:]]


def _lines(
    pieces: Numbers,
    weights: npt.NDArray[np.float64],
    table: Sequence[Sequence[Any]],
    original: Callable[[str], str],
) -> tuple[LineShare, ...]:
    direct = _sums(pieces[:, 2], weights, len(table))
    gradients = _sums(pieces[:, 4], weights, len(table))
    found = []
    for (file, line, function), share, backward in zip(table, direct, gradients, strict=True):
        if max(share, backward) >= _LEAST_SHARE:
            found.append(
                LineShare(
                    file=original(file),
                    line=line,
                    source=source_of(file, line),
                    share=share,
                    backward=backward,
                    function=function,
                )
            )
    return tuple(sorted(found, key=lambda row: -row.share))


def _modules(
    pieces: Numbers, weights: npt.NDArray[np.float64], phases: Numbers, table: Sequence[Sequence[str]]
) -> tuple[ModuleShare, ...]:
    is_forward, is_backward = phases == _FORWARD, phases == _BACKWARD
    inside, of_gradient = pieces[:, 3], pieces[:, 5]
    forward = _sums(inside, weights * is_forward, len(table))
    again = _sums(inside, weights * is_backward, len(table))  # computed once more: activation checkpointing
    gradients = _sums(of_gradient, weights * is_backward, len(table))
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for (name, _), *parts in zip(table, forward, again, gradients, strict=True):
        path = name.split(".")
        for depth in range(1, len(path) + 1):
            outer = sums[".".join(path[:depth])]
            outer[0] += parts[0]
            outer[1] += parts[1] + parts[2]
        sums[name][2] += sum(parts)
    rows = [
        ModuleShare(name=name, kind=kind, forward=sums[name][0], backward=sums[name][1], own=sums[name][2])
        for name, kind in table
    ]
    return tuple(row for row in rows if row.forward + row.backward >= _LEAST_SHARE)
