"""The order of samples: a keyed bijection of [0, n), computed per index instead of a shuffled list.

Owns the algorithm and its version. Leaves to others which seed, which epoch, and what is fetched.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from truestep.base import rng
from truestep.errors import UsageError

VERSION = 1
"""Part of the recipe: raise it when the same seed and epoch would give another order."""

Indices = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]
Numbers = npt.NDArray[Any]
Turns = list[tuple[int, int]]

_LARGEST = 1 << 62
_NUM_ROUNDS = 6
_MIN_BITS = 8
_FIRST_CHUNK, _CHUNK = 2048, 32768
_SHIFT_FIRST, _SHIFT_SECOND = np.uint32(16), np.uint32(13)
_MULTIPLY_FIRST, _MULTIPLY_SECOND = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_WORD = 0xFFFFFFFF


def _mix(words: Words, scratch: Words) -> None:
    """Apply murmur3's 32-bit finaliser in place; the scratch array saves three allocations a round."""
    words ^= np.right_shift(words, _SHIFT_FIRST, out=scratch)
    words *= _MULTIPLY_FIRST
    words ^= np.right_shift(words, _SHIFT_SECOND, out=scratch)
    words *= _MULTIPLY_SECOND
    words ^= np.right_shift(words, _SHIFT_FIRST, out=scratch)


def _outside(n: int, smallest: int, largest: int) -> UsageError:
    found = str(smallest) if smallest == largest else f"{smallest} to {largest}"
    return UsageError(f"positions must be in [0, {n}), got {found}. Check how they were computed.")


class Permutation:
    """A permutation of [0, n) that depends on seed and epoch alone and takes no memory.

    A Feistel network of six rounds on max(8, ceil(log2 n)) bits, walked until it lands inside [0, n).
    It is integer arithmetic throughout, so it is the same on every machine; `VERSION` names it.

    >>> order = Permutation(10, seed=7, epoch=0)
    >>> sorted(order(np.arange(10)).tolist()) == list(range(10))
    True
    >>> order.inverse(order(np.arange(10))).tolist() == list(range(10))
    True
    """

    def __init__(self, n: int, *, seed: int, epoch: int, _num_rounds: int = _NUM_ROUNDS) -> None:
        if not 1 <= n <= _LARGEST:
            raise UsageError(
                f"a permutation needs n from 1 to 2**62, got n={n}. Pass a dataset of that size."
            )
        if not -(1 << 63) <= seed < 1 << 63:
            raise UsageError(f"a seed must fit into 64 signed bits, got {seed}. Pass a smaller one.")
        self.n = n
        # Below 8 bits the halves have too few values for the rounds to reach every permutation evenly.
        bits = max(_MIN_BITS, (n - 1).bit_length())
        # Half the bytes, about a fifth less time; n itself has to fit, so 2**32 does not qualify.
        self._dtype = np.uint32 if bits < _WORD.bit_length() else np.uint64
        self._right_bits = bits // 2
        self._left_mask = (1 << (bits - self._right_bits)) - 1
        self._right_mask = (1 << self._right_bits) - 1
        # bits: the keys fix the order for good; a change here is a new VERSION.
        keys = [rng.derive(seed, "order", epoch, n, turn) & _WORD for turn in range(_num_rounds)]
        self._turns = list(enumerate(keys))
        self._turns_back = self._turns[::-1]
        self._table = self._tabulate() if bits == _MIN_BITS else None

    def __call__(self, positions: npt.NDArray[Any]) -> Indices:
        """Return the index that stands at each position."""
        numbers = self._checked(positions)
        return self._walk(numbers, self._turns) if self._table is None else self._table[numbers]

    def inverse(self, indices: npt.NDArray[Any]) -> Indices:
        """Return the position at which each index stands."""
        numbers = self._checked(indices)
        return (
            self._walk(numbers, self._turns_back) if self._table is None else self._table.argsort()[numbers]
        )

    def _checked(self, numbers: npt.NDArray[Any]) -> Numbers:
        # A negative number becomes a huge one here, so one comparison finds both ends.
        unsigned = np.asarray(numbers).astype(np.uint64)
        if unsigned.size and int(unsigned.max()) >= self.n:
            raise _outside(self.n, int(np.min(numbers)), int(np.max(numbers)))
        return unsigned.astype(self._dtype)

    def _tabulate(self) -> Indices:
        # For a small n most of the 256 numbers lie outside and walks are long: do them once, by look-up.
        network = self._network(np.arange(1 << _MIN_BITS, dtype=np.uint32), self._turns).tolist()
        table = []
        for position in range(self.n):
            number = network[position]
            while number >= self.n:
                number = network[number]
            table.append(number)
        return np.array(table, dtype=np.int64)

    def _walk(self, numbers: Numbers, turns: Turns) -> Indices:
        flat = self._network(numbers.reshape(-1), turns)
        outside = np.flatnonzero(flat >= self.n)
        while outside.size:
            walked = self._network(flat[outside], turns)
            flat[outside] = walked
            outside = outside[walked >= self.n]
        return flat.reshape(numbers.shape).astype(np.int64)

    def _network(self, numbers: Numbers, turns: Turns) -> Numbers:
        right_bits = numbers.dtype.type(self._right_bits)
        left: Words = (numbers >> right_bits).astype(np.uint32, copy=False)
        right: Words = (numbers & numbers.dtype.type(self._right_mask)).astype(np.uint32, copy=False)
        left_mask, right_mask = np.uint32(self._left_mask), np.uint32(self._right_mask)
        mixed, scratch = np.empty_like(left), np.empty_like(left)
        for turn, key in turns:
            source, target, mask = (left, right, right_mask) if turn & 1 else (right, left, left_mask)
            np.add(source, np.uint32(key), out=mixed)
            _mix(mixed, scratch)
            mixed &= mask
            target ^= mixed
        joined: Numbers = left.astype(numbers.dtype, copy=False)
        joined <<= right_bits
        joined |= right
        return joined


class Order:
    """The order of one epoch, read in slices: a chunk is computed at a time and the last one is kept.

    `onto`, if given, maps the indices once more (a part of a split, onto the dataset that was split).

    >>> Order(5, seed=7, epoch=0, shuffle=False).indices(1, 4)
    [1, 2, 3]
    """

    def __init__(
        self,
        n: int,
        *,
        seed: int,
        epoch: int,
        shuffle: bool = True,
        onto: Callable[[Indices], Indices] | None = None,
    ) -> None:
        self.n = n
        self._permutation = Permutation(n, seed=seed, epoch=epoch) if shuffle else None
        self._onto = onto
        self._start = self._stop = 0
        self._array: Indices = np.empty(0, dtype=np.int64)

    def indices(self, start: int, stop: int) -> list[int]:
        """Return the indices at positions start to stop as plain integers."""
        found: list[int] = self.array(start, stop).tolist()
        return found

    def array(self, start: int, stop: int) -> Indices:
        """Return the indices at positions start to stop as an array, to be read and not written."""
        if self._start <= start and stop <= self._stop:
            return self._array[start - self._start : stop - self._start]
        pieces = []
        while start < stop:
            self._hold(start)
            end = min(stop, self._stop)
            pieces.append(self._array[start - self._start : end - self._start])
            start = end
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)

    def _hold(self, position: int) -> None:
        if self._start <= position < self._stop:
            return
        if not 0 <= position < self.n:
            raise _outside(self.n, position, position)
        # A start or a resume waits for its first chunk, so that is small; large ones cost least per index.
        is_next = 0 < self._stop <= position < self._stop + _CHUNK
        length = min(2 * (self._stop - self._start), _CHUNK) if is_next else _FIRST_CHUNK
        self._start, self._stop = position, min(self.n, position + length)
        array = np.arange(self._start, self._stop, dtype=np.int64)
        if self._permutation is not None:
            array = self._permutation(array)
        self._array = array if self._onto is None else self._onto(array)
