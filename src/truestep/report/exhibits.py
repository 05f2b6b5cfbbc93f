"""What a script showed with `run.log`, as its record says: distributions, pictures and texts.

Owns which of them count, and what is read off a histogram. A line that makes no sense is the caller's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from truestep.record import number
from truestep.report.thin import Floats

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
_MAX_BINS = 10_000
MAX_CURSOR = 2**53


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How the values of one tensor were spread: range, and below which value each of `SHARES` lies."""

    low: float
    high: float
    quantiles: tuple[float, ...]
    mean: float
    std: float
    num: float
    num_nonfinite: float


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """A picture, as the name of its file, or a text."""

    name: str
    cursor: int
    content: str


@dataclass(kw_only=True)
class Exhibits:
    """All of one run. Of those with one name after as many steps the last counts."""

    spreads: dict[str, dict[int, Spread]] = field(default_factory=dict)
    pictures: dict[tuple[str, int], Exhibit] = field(default_factory=dict)
    texts: dict[tuple[str, int], Exhibit] = field(default_factory=dict)
    lines: dict[tuple[str, str, int], dict[str, Any]] = field(default_factory=dict)
    """As they were read, by kind, name and cursor."""

    def take(self, event: dict[str, Any]) -> None:
        """Take a line of one of the three kinds."""
        name, cursor = event["name"], event["cursor"]
        if not isinstance(name, str) or cursor.__class__ is not int or not 0 <= cursor < MAX_CURSOR:
            raise ValueError("name and cursor")
        self.lines[event["kind"], name, cursor] = event
        if event["kind"] == "histogram":
            self.spreads.setdefault(name, {})[cursor] = _spread(event)
            return
        field_name, items = ("file", self.pictures) if event["kind"] == "picture" else ("text", self.texts)
        content = event[field_name]
        if not isinstance(content, str):
            raise TypeError(field_name)
        items.pop((name, cursor), None)  # the newest line is the last
        items[name, cursor] = Exhibit(name=name, cursor=cursor, content=content)

    def cut(self, cursor: int) -> None:
        """Forget what was shown after so many steps: a resumed run does these steps again."""
        self.lines = {key: line for key, line in self.lines.items() if key[2] <= cursor}
        self.spreads = {
            name: {step: spread for step, spread in found.items() if step <= cursor}
            for name, found in self.spreads.items()
        }
        self.pictures = {key: item for key, item in self.pictures.items() if item.cursor <= cursor}
        self.texts = {key: item for key, item in self.texts.items() if item.cursor <= cursor}


def newest(items: Mapping[tuple[str, int], Exhibit]) -> list[Exhibit]:
    """Return them by steps, the newest first, and by name where steps are equal."""
    return sorted(items.values(), key=lambda item: (-item.cursor, item.name))


def fair(items: Mapping[tuple[str, int], Exhibit]) -> list[Exhibit]:
    """Return them newest first, but the newest of every name before the second of any."""
    rank: dict[str, int] = {}
    ranked = []
    for item in newest(items):
        rank[item.name] = rank.get(item.name, -1) + 1
        ranked.append((rank[item.name], item))
    return [item for _, item in sorted(ranked, key=lambda pair: pair[0])]


def read_histogram(event: Mapping[str, Any]) -> tuple[float, float, Floats]:
    """Return range and counts of a `histogram` line; one that makes no sense is a ValueError or the like."""
    low, high, counts = number(event["low"]), number(event["high"]), event["counts"]
    if not isinstance(counts, list) or not 0 < len(counts) <= _MAX_BINS:
        raise ValueError("counts")
    numbers = np.array([number(count) for count in counts], dtype=np.float64)
    is_empty = not numbers.any() and math.isnan(low) and math.isnan(high)
    is_whole = math.isfinite(low) and math.isfinite(high) and low <= high
    if not (is_empty or is_whole) or not np.isfinite(numbers).all() or (numbers < 0).any():
        raise ValueError("histogram")
    return low, high, numbers


def edges(low: float, high: float, *, num_bins: int) -> Floats:
    """Return where bins begin and end, one more than there are bins."""
    part = np.linspace(0.0, 1.0, num_bins + 1)
    return low * (1 - part) + high * part  # the difference of both could overflow


def _quantiles(low: float, high: float, counts: Floats) -> tuple[float, ...]:
    """Return below which value each share lies, as if values were spread evenly inside a bin."""
    with np.errstate(over="ignore"):
        total = counts.sum()
    if not 0 < total < np.inf:
        return (math.nan,) * len(SHARES)
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    # Only ends of bins that hold something: a share that is reached exactly is not in the gap after it.
    is_end = np.concatenate([[True], counts > 0]) | np.concatenate([counts > 0, [True]])
    found = np.interp(np.array(SHARES) * total, sums[is_end], edges(low, high, num_bins=len(counts))[is_end])
    return tuple(found.tolist())


def _spread(event: dict[str, Any]) -> Spread:
    low, high, counts = read_histogram(event)
    return Spread(
        low=low,
        high=high,
        quantiles=_quantiles(low, high, counts),
        mean=number(event["mean"]),
        std=number(event["std"]),
        num=number(event["num"]),
        num_nonfinite=number(event["num_nonfinite"]),
    )
