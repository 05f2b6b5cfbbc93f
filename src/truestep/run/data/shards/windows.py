"""The shuffled order of samples in shards: shards at random, and samples inside a window of some of them.

Owns which sample stands at a position. Leaves seeds and epochs to the loader.
"""

import numpy as np

from truestep.base import rng
from truestep.run.data.permutation import Indices, Permutation

VERSION = 1
"""Part of the recipe: raise it when the same seed, epoch and window would give another order."""

_SHARDS_AT_ONCE = 1 << 16


class Windows:
    """One epoch's order: all shards once, in windows, and all samples of a window before those of the next.

    `starts` has the index at which each shard begins, and the number of samples at its end. A window's begin
    is all that is kept for it: eight bytes for every `window` shards.
    """

    def __init__(self, starts: Indices, *, window: int, seed: int, epoch: int) -> None:
        self._starts = starts
        self._window = window
        self._seed, self._epoch = seed, epoch
        self._num_shards = len(starts) - 1
        # bits: the keys fix the order for good; a change here is a new VERSION.
        self._shards = Permutation(self._num_shards, seed=rng.derive(seed, "shards"), epoch=epoch)
        self._begins = self._find_begins()

    def locate(self, positions: Indices) -> Indices:
        """Return the index of the sample at each position."""
        numbers = np.searchsorted(self._begins, positions, side="right") - 1
        found = np.empty(len(positions), dtype=np.int64)
        for number in np.unique(numbers).tolist():
            inside = numbers == number
            found[inside] = self._locate(number, positions[inside] - self._begins[number])
        return found

    def _locate(self, number: int, places: Indices) -> Indices:
        shards = self._shards_of(number)
        starts = self._starts[shards]
        ends = np.cumsum(self._starts[shards + 1] - starts)
        # bits: as above.
        seed = rng.derive(self._seed, "window", number)
        shuffled = Permutation(int(ends[-1]), seed=seed, epoch=self._epoch)(places)
        which = np.searchsorted(ends, shuffled, side="right")
        begins = np.concatenate(([0], ends[:-1]))
        located: Indices = starts[which] + shuffled - begins[which]
        return located

    def _shards_of(self, number: int) -> Indices:
        first = number * self._window
        return self._shards(np.arange(first, max(first, min(first + self._window, self._num_shards))))

    def _find_begins(self) -> Indices:
        sizes = []
        at_once = max(1, _SHARDS_AT_ONCE // self._window) * self._window
        for first in range(0, self._num_shards, at_once):
            shards = self._shards(np.arange(first, min(first + at_once, self._num_shards)))
            counts = self._starts[shards + 1] - self._starts[shards]
            sizes.append(np.add.reduceat(counts, np.arange(0, len(counts), self._window)))
        ends = np.cumsum(np.concatenate(sizes))
        return np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1]))
