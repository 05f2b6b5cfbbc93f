"""Series of numbers over steps, and thinning them for a picture so that no extreme is lost.

Owns which points are kept. What they mean and how they look is left to others.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One number at each of some steps, in the order of steps."""

    steps: Ints
    values: Floats

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def finite(self) -> "Series":
        """Only those points whose value is a number."""
        is_finite = np.isfinite(self.values)
        return self if is_finite.all() else Series(steps=self.steps[is_finite], values=self.values[is_finite])


def thin(series: Series, *, max_points: int = 4000) -> Series:
    """Return about `max_points` at most: the first, lowest, highest and last of each stretch.

    A curve through them covers the same pixels as one through all. The first value of each stretch that is no
    number is kept too, so that a single NaN in a million steps is still there.
    """
    if len(series) <= max_points:
        return series
    edges = np.linspace(0, len(series), max(1, max_points // 4) + 1).astype(np.int64)
    kept: set[int] = set()
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        kept.update(_extremes(series.values[low:high], low))
    index = np.array(sorted(kept), dtype=np.int64)
    return Series(steps=series.steps[index], values=series.values[index])


def _extremes(values: Floats, offset: int) -> set[int]:
    kept = {offset, offset + len(values) - 1}
    is_finite = np.isfinite(values)
    if is_finite.all():
        return kept | {offset + int(values.argmin()), offset + int(values.argmax())}
    kept.add(offset + int(is_finite.argmin()))
    if is_finite.any():
        kept.add(offset + int(np.where(is_finite, values, np.inf).argmin()))
        kept.add(offset + int(np.where(is_finite, values, -np.inf).argmax()))
    return kept


def smooth(series: Series, *, num_points: int = 500, share: float = 0.02) -> tuple[Series, int]:
    """Return a moving mean over a share of the steps at some of them, and over how many points it goes."""
    finite = series.finite
    width = max(1, int(len(finite) * share)) | 1
    if width < 3:
        return finite, 1
    # Relative to the largest: sums of huge values would overflow.
    scale = float(np.abs(finite.values).max()) or 1.0
    sums = np.concatenate([[0.0], np.cumsum(finite.values / scale)])
    index = np.unique(np.linspace(0, len(finite) - 1, num_points).astype(np.int64))
    low, high = np.maximum(index - width // 2, 0), np.minimum(index + width // 2 + 1, len(finite))
    means = (sums[high] - sums[low]) / (high - low) * scale
    return Series(steps=finite.steps[index], values=means), width
