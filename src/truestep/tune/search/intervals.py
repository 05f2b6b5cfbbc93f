"""Medians with intervals, and where a warm-up ends: the statistics of step times.

Owns arithmetic on lists of numbers; knows nothing of scripts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

CONFIDENCE = 0.98
_GROUP = 2


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A median, and where the true one lies by order statistics: no assumption on how noise is shaped."""

    median: float
    low: float
    high: float
    num: int

    def as_fields(self) -> dict[str, float | int]:
        """Return plain values."""
        return {"median": self.median, "low": self.low, "high": self.high, "num": self.num}


def interval(values: Sequence[float]) -> Interval:
    """Return the median with the narrowest symmetric interval of ranks that has enough confidence.

    Few values have none: then it reaches from the least to the greatest.

    >>> interval([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 9.0])
    Interval(median=1.35, low=1.0, high=9.0, num=8)
    """
    ordered = sorted(values)
    num = len(ordered)
    rank = 0
    while rank + 1 < num / 2 and _coverage(num, rank + 1) >= CONFIDENCE:
        rank += 1
    return Interval(median=median(ordered), low=ordered[rank], high=ordered[num - 1 - rank], num=num)


def _coverage(num: int, rank: int) -> float:
    """Return how surely the median lies between the values of these ranks from below and above."""
    return 1.0 - 2.0 * sum(comb(num, k) for k in range(rank + 1)) / float(2**num)


def warm_up(seconds: Sequence[float]) -> int | None:
    """Return how many steps at the beginning are not like the rest; None if it does not settle.

    The cut at which the mean of what remains is known best (the rule MSER, on pairs of steps). A cut in the
    middle or later means that more steps are needed.

    >>> warm_up([9.0, 4.0, 1.0, 1.1, 1.0, 1.0, 1.1, 1.0, 1.0, 1.0])
    2
    >>> warm_up([5.0, 4.0, 3.0, 2.0]) is None
    True
    """
    groups = [sum(seconds[at : at + _GROUP]) for at in range(0, len(seconds) - _GROUP + 1, _GROUP)]
    if len(groups) < 4:
        return None
    cuts = range(len(groups) // 2 + 1)
    best = min(cuts, key=lambda cut: _score(groups[cut:]))
    return best * _GROUP if best < cuts[-1] else None


def _score(values: Sequence[float]) -> float:
    """Return the squared standard error of the mean, but for a factor."""
    mean = sum(values) / len(values)
    return float(sum((value - mean) ** 2 for value in values) / len(values) ** 2)
