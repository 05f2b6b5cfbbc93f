"""Seeds by hashing, and setting torch's, Python's and NumPy's global generators from them."""

import hashlib
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy
import torch

from truestep.base.device import module_in_use
from truestep.base.rng.twister import NUM_WORDS, NumpyTwister, PythonTwister, Row, watch

VERSION = 1
"""Part of the recipe: raise it when the same root would give other seeds."""

_BLOCK, _TORCH_BLOCK = 16, 64
_MAX_BLOCKS = 256


def derive(root: int, purpose: str, *where: int) -> int:
    """Return a 63-bit seed for one purpose at one place.

    `seed + rank` and `seed + index` overlap between runs and ranks; a hash does not.

    >>> derive(7, "lane", 0, 1) == derive(7, "lane", 0, 1) != derive(7, "lane", 1, 0)
    True
    """
    return int.from_bytes(_hash(root, purpose, *where)[:8], "little") >> 1


def _hash(root: int, purpose: str, *where: int) -> bytes:
    key = struct.pack("<q", root)
    hashed = hashlib.blake2b(purpose.encode(), digest_size=24, key=key, person=b"truestep.rng")
    hashed.update(struct.pack(f"<{len(where)}q", *where))
    return hashed.digest()


class _Block(NamedTuple):
    """What the twisters are set to at consecutive numbers of one place."""

    number: int
    python: Sequence[Row]
    numpy: Sequence[Row]


class Seeds:
    """Sets the global generators for one purpose, at any number and place, in a few microseconds.

    A place has a number (a step) first. States are made for a block of numbers at once: one hash is the key
    of a generator whose output is the states' words. What a place gets does not depend on which
    places were visited before.
    """

    def __init__(self, root: int, purpose: str) -> None:
        self._root, self._purpose = root, purpose
        self.twisters = self._python, self._numpy = PythonTwister(), NumpyTwister()
        self._blocks: dict[tuple[int, ...], _Block] = {}
        self._torch_blocks: dict[tuple[int, ...], tuple[int, list[int]]] = {}
        self._manual_seed = torch.default_generator.manual_seed
        self._source = numpy.random.PCG64(0)

    def set(self, number: int = 0, *where: int) -> None:
        """Set the global generators of torch (every device), `random` and NumPy."""
        self.set_torch(number, where)
        block = self._blocks.get(where)
        if block is None or block.number != number // _BLOCK:
            block = self._make(number // _BLOCK, where)
        self._python.write(block.python[number % _BLOCK])
        self._numpy.write(block.numpy[number % _BLOCK])

    def set_torch(self, number: int, where: tuple[int, ...]) -> None:
        """Set torch's generators alone."""
        block = self._torch_blocks.get(where)
        if block is None or block[0] != number // _TORCH_BLOCK:
            block = self._make_torch(number // _TORCH_BLOCK, where)
        seed = block[1][number % _TORCH_BLOCK]
        # `torch.manual_seed` costs about 160 us; setting the generators themselves under 2.
        self._manual_seed(seed)
        if (module := module_in_use()) is not None:
            module.manual_seed_all(seed)

    def _make(self, number: int, where: tuple[int, ...]) -> _Block:
        words = self._expand("twisters", number, where, num_words=_BLOCK * NUM_WORDS)
        states = words.view(numpy.uint32).reshape(2, _BLOCK, NUM_WORDS)
        if len(self._blocks) >= _MAX_BLOCKS:
            self._blocks.clear()
        block = _Block(number, self._python.rows(states[0]), self._numpy.rows(states[1]))
        self._blocks[where] = block
        return block

    def _make_torch(self, number: int, where: tuple[int, ...]) -> tuple[int, list[int]]:
        words = self._expand("torch", number, where, num_words=_TORCH_BLOCK)
        if len(self._torch_blocks) >= _MAX_BLOCKS:
            self._torch_blocks.clear()
        block = number, (words >> numpy.uint64(1)).tolist()
        self._torch_blocks[where] = block
        return block

    def _expand(self, what: str, number: int, where: tuple[int, ...], *, num_words: int) -> Any:
        hashed = _hash(self._root, f"{self._purpose} {what}", number, *where)
        return _expand(self._source, key=int.from_bytes(hashed[:16], "little"), num_words=num_words)


def _expand(source: numpy.random.PCG64, *, key: int, num_words: int) -> "numpy.ndarray[Any, Any]":
    """Return as many 64-bit words as wanted from one key, by a generator that passes for random."""
    source.state = {
        "bit_generator": "PCG64",
        "state": {"state": key, "inc": 1},
        "has_uint32": 0,
        "uinteger": 0,
    }
    return numpy.asarray(source.random_raw(num_words))


class LazySeeds:
    """Sets the generators as `Seeds` does, but Python's and NumPy's only once something draws from them.

    Most training loops draw from torch alone, and the other two cost more than it. Until a place draws from
    them they stand at one state of the root's; from the round after that on, every place has its own. Whether
    it has come to that is `is_used`: with `is_touched` it belongs to what a resumed run must bring back.
    """

    def __init__(self, root: int, purpose: str) -> None:
        self._seeds = Seeds(root, purpose)
        self._set_torch = self._seeds.set_torch
        self._python, self._numpy = self._seeds.twisters
        words = _expand(numpy.random.PCG64(0), key=derive(root, purpose), num_words=NUM_WORDS)
        states = words.view(numpy.uint32).reshape(2, 1, NUM_WORDS)
        self._rows = self._python.rows(states[0])[0], self._numpy.rows(states[1])[0]
        self._are_parked = watch(self._python, self._numpy, rows=self._rows)
        self.is_used = False
        self.is_touched = False
        """Whether a place has drawn from them; it takes effect with the end of the round."""

    def set(self, number: int, *where: int) -> None:
        """Set the generators for a place."""
        if self.is_used:
            self._seeds.set(number, *where)
            return
        self._set_torch(number, where)
        if not self._are_parked():
            self._python.write(self._rows[0])
            self._numpy.write(self._rows[1])

    def set_all(self, number: int) -> None:
        """Set all generators for a place outside of rounds, whether they are in use or not."""
        self._seeds.set(number)

    def leave(self) -> None:
        """Look whether the place that `set` was called for drew from Python's or NumPy's generator."""
        if not self.is_used and not self._are_parked():
            self.is_touched = True

    def end_round(self) -> None:
        """Let what was seen take effect; within a round it would depend on who runs which places."""
        self.is_used = self.is_used or self.is_touched


@cache
def _seeds(root: int, purpose: str) -> Seeds:
    return Seeds(root, purpose)


def seed_generators(root: int, purpose: str, *where: int) -> None:
    """Set the global generators of torch (every device), `random` and NumPy from one place."""
    _seeds(root, purpose).set(*where)
