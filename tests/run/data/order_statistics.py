"""Statistics that tell a shuffle from something that only looks like one.

Owns the numbers; the test and the benchmark decide how many seeds to spend and what to conclude.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from truestep.base import rng
from truestep.run.data import Permutation

LIMIT = 4.5
"""A |z| beyond this is a failure: one in 150,000 for a true shuffle, thousands for a bad one."""

Array = npt.NDArray[np.int64]
Shuffle = Callable[[int, int], Array]
"""From (n, seed) to the whole permutation as an array."""

_BATCH = 64
_LOW = 4


def ours(n: int, seed: int) -> Array:
    """Return the package's order."""
    return Permutation(n, seed=seed, epoch=0)(np.arange(n))


def ours_by_epoch(n: int, seed: int) -> Array:
    """Return the package's order of successive epochs under one seed."""
    return Permutation(n, seed=0, epoch=seed)(np.arange(n))


def ours_in_two_rounds(n: int, seed: int) -> Array:
    """Return the order with the network cut short: the control that has to fail."""
    return Permutation(n, seed=seed, epoch=0, _num_rounds=2)(np.arange(n))


def randperm(n: int, seed: int) -> Array:
    """Return torch's shuffled list: the control that has to pass."""
    generator = torch.Generator().manual_seed(rng.derive(seed, "reference"))
    shuffled: Array = torch.randperm(n, generator=generator).numpy()
    return shuffled


def _z(chi_square: float, degrees: float) -> float:
    # Wilson and Hilferty: normal to within a few percent from ten degrees of freedom on, in the tails too.
    spread = 2 / (9 * degrees)
    return float((max(chi_square, 0.0) / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def _chi_square(cells: Array, num_cells: int) -> float:
    counts = np.bincount(cells, minlength=num_cells)
    expected = len(cells) / num_cells
    return float(((counts - expected) ** 2).sum() / expected)


def _joint(rows: Array, columns: Array, num_bins: int) -> float:
    """Compare two binned sequences whose bins are all equally full: (bins - 1) squared degrees of freedom."""
    return _z(_chi_square(rows * num_bins + columns, num_bins**2), (num_bins - 1) ** 2)


def _position(order: Array, binned: Array, num_bins: int) -> float:
    n = len(order)
    return _joint(np.arange(n) * num_bins // n, binned, num_bins)


def _adjacent(binned: Array, num_bins: int) -> float:
    return _joint(binned, np.roll(binned, -1), num_bins)


def _low_bits(order: Array) -> float:
    """Compare triples of neighbours modulo 4 beyond what their pairs explain (Good's serial test)."""
    low = order % _LOW
    second, third = np.roll(low, -1), np.roll(low, -2)
    pairs = _chi_square(low * _LOW + second, _LOW**2)
    triples = _chi_square((low * _LOW + second) * _LOW + third, _LOW**3)
    return _z(triples - pairs, _LOW * (_LOW - 1) ** 2 + (_LOW - 1) ** 2)


def _gap(order: Array) -> float:
    n = len(order)
    num_bins = min(256, n // 16)
    # A gap of 0 cannot happen: 1 to n - 1 are equally likely.
    gaps = (np.roll(order, -1) - order) % n - 1
    return _z(_chi_square(gaps * num_bins // (n - 1), num_bins), num_bins - 1)


def _balance(labels: Array) -> float:
    """Compare the number of samples with label 1 per batch with what chance gives."""
    num_batches = len(labels) // _BATCH
    sums = labels[: num_batches * _BATCH].reshape(num_batches, _BATCH).sum(axis=1)
    return _z(float(((sums - _BATCH / 2) ** 2).sum() / (_BATCH / 4)), num_batches - 1)


def measure(shuffle: Shuffle, n: int, *, num_seeds: int) -> dict[str, list[float]]:
    """Return z per statistic and seed; near 0 for a true shuffle, wherever it is looked at."""
    num_bins = min(64, math.isqrt(n // 8))
    found: dict[str, list[float]] = {}
    before: Array | None = None
    for seed in range(num_seeds):
        order = shuffle(n, seed)
        binned = order * num_bins // n
        row = {
            "position": _position(order, binned, num_bins),
            "adjacent pair": _adjacent(binned, num_bins),
            "low bits": _low_bits(order),
            "gap": _gap(order),
            "balance by parity": _balance(order % 2),
            "balance by half": _balance(order * 2 // n),
        }
        if before is not None:
            row["cross seed"] = _joint(before, binned, num_bins)
        before = binned
        for name, z in row.items():
            found.setdefault(name, []).append(z)
    return found


def uniformity(shuffle: Shuffle, n: int, *, num_seeds: int) -> float:
    """Return z of the counts of all n! permutations over the seeds, for a tiny n."""
    place = {each: at for at, each in enumerate(itertools.permutations(range(n)))}
    cells = np.array([place[tuple(shuffle(n, seed).tolist())] for seed in range(num_seeds)], dtype=np.int64)
    return _z(_chi_square(cells, len(place)), len(place) - 1)


def worst(found: dict[str, list[float]]) -> dict[str, float]:
    """Return the largest |z| per statistic: of one seed, or of the mean over all of them."""
    return {name: max(map(abs, _with_mean(values))) for name, values in found.items()}


def _with_mean(values: list[float]) -> Iterator[float]:
    yield from values
    # A small bias that every seed shares does not show in one of them.
    yield sum(values) / math.sqrt(len(values))


def failures(found: dict[str, Any]) -> list[str]:
    """Return the statistics that go beyond the limit."""
    return [name for name, z in worst(found).items() if z > LIMIT]
