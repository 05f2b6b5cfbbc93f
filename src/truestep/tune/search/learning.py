"""Whether learning survives: losses with other settings, against what another seed does to them.

Owns the comparison of curves. Which curves are there is left to `search`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import isfinite
from statistics import fmean

_MAX_WINDOWS = 8
_MIN_STEPS = 8
_FLOOR = 0.005
"""Curves that are nearer than this part of the loss are alike, whatever seeds do."""


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How far a curve is from the script's own, beside how far curves of other seeds are from each other."""

    survives: bool
    words: str
    distance: float = 0.0
    allowed: float = 0.0
    steps: int = 0
    curve: tuple[float, ...] = ()
    """Mean losses of equal stretches of steps, with the settings."""
    own: tuple[float, ...] = ()
    """The same of the script as it stands."""

    def as_fields(self) -> dict[str, object]:
        """Return plain values; None for a number that is not finite, which JSON does not know."""
        return {name: _plain(value) for name, value in vars(self).items()}


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def can_judge(*curves: Sequence[float | None]) -> bool:
    """Whether all have a loss at each of their common steps, and there are enough of these."""
    return not _why_not(curves)


def compare_learning(
    tuned: Sequence[float | None], own: Sequence[float | None], *, seeds: Sequence[Sequence[float | None]]
) -> Learning:
    """Compare a curve with the script's own; `seeds` has curves of the script with other seeds.

    >>> own, other = [1.0 / (1 + 0.1 * n) for n in range(40)], [1.02 / (1 + 0.1 * n) for n in range(40)]
    >>> (
    ...     compare_learning(own, own, seeds=[other]).survives,
    ...     compare_learning([1.0] * 40, own, seeds=[other]).survives,
    ... )
    (True, False)
    """
    length = min(map(len, (tuned, own, *seeds)))
    why_not = _why_not((tuned, own, *seeds))
    if why_not:
        return Learning(survives=True, steps=length, words=f"not compared: {why_not}")
    mine, base, *others = [_windows(_values(curve[:length])) for curve in (tuned, own, *seeds)]
    if not all(map(isfinite, mine)):
        return Learning(
            survives=not all(map(isfinite, base)),
            words="the loss is not finite",
            steps=length,
            curve=tuple(mine),
            own=tuple(base),
        )
    distance = _distance(mine, base)
    by_luck = [_distance(*pair) for pair in combinations([base, *others], 2)]
    allowed = max(max(by_luck, default=0.0), _FLOOR * fmean(map(abs, base)))
    survives = distance <= allowed
    words = f"the loss differs by {distance:.2g} on average, other seeds by up to {allowed:.2g}"
    return Learning(
        survives=survives,
        words=words,
        distance=distance,
        allowed=allowed,
        steps=length,
        curve=tuple(mine),
        own=tuple(base),
    )


def _why_not(curves: Sequence[Sequence[float | None]]) -> str:
    length = min(map(len, curves))
    if length < _MIN_STEPS:
        return f"{length} steps are too few, at least {_MIN_STEPS} are needed"
    if any(len(_values(curve[:length])) < length for curve in curves):
        return "some steps had no loss"
    return ""


def _values(curve: Sequence[float | None]) -> list[float]:
    return [value for value in curve if value is not None]


def _windows(curve: Sequence[float]) -> list[float]:
    """Return the means of equal stretches: single steps depend on their batch more than on anything else."""
    num = max(1, min(_MAX_WINDOWS, len(curve) // 4))
    edges = [len(curve) * at // num for at in range(num + 1)]
    return [fmean(curve[begin:end]) for begin, end in pairwise(edges)]


def _distance(curve: Sequence[float], other: Sequence[float]) -> float:
    return fmean(abs(mine - theirs) for mine, theirs in zip(curve, other, strict=True))
