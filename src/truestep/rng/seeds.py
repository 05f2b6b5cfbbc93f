"""Seeds by hashing, and setting torch's, Python's and NumPy's global generators from them."""

import hashlib
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy
import torch

from truestep.rng.twister import NUM_WORDS, NumpyTwister, PythonTwister, Row

VERSION = 1
"""Part of the recipe: raise it when the same root would give other seeds."""

_BLOCK = 16
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
    """What the generators are set to at consecutive numbers of one place."""

    number: int
    torch: list[int]
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
        self._python, self._numpy = PythonTwister(), NumpyTwister()
        self._blocks: dict[tuple[int, ...], _Block] = {}
        self._set_torch = torch.default_generator.manual_seed
        self._source = numpy.random.PCG64(0)

    def set(self, number: int = 0, *where: int) -> None:
        """Set the global generators of torch (every device), `random` and NumPy."""
        block = self._blocks.get(where)
        if block is None or block.number != number // _BLOCK:
            block = self._make(number // _BLOCK, where)
        at = number % _BLOCK
        # `torch.manual_seed` costs about 160 us; setting the generators themselves under 2.
        self._set_torch(block.torch[at])
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(block.torch[at])
        self._python.write(block.python[at])
        self._numpy.write(block.numpy[at])

    def _make(self, number: int, where: tuple[int, ...]) -> _Block:
        if len(self._blocks) >= _MAX_BLOCKS:
            self._blocks.clear()
        key = int.from_bytes(_hash(self._root, self._purpose, number, *where)[:16], "little")
        words = _expand(self._source, key=key, num_words=_BLOCK * (1 + NUM_WORDS))
        for_torch, rest = words[:_BLOCK] >> numpy.uint64(1), words[_BLOCK:].view(numpy.uint32)
        states = rest.reshape(2, _BLOCK, NUM_WORDS)
        block = self._blocks[where] = _Block(
            number, for_torch.tolist(), self._python.rows(states[0]), self._numpy.rows(states[1])
        )
        return block


def _expand(source: numpy.random.PCG64, *, key: int, num_words: int) -> "numpy.ndarray[Any, Any]":
    """Return as many 64-bit words as wanted from one key, by a generator that passes for random."""
    source.state = {
        "bit_generator": "PCG64",
        "state": {"state": key, "inc": 1},
        "has_uint32": 0,
        "uinteger": 0,
    }
    return numpy.asarray(source.random_raw(num_words))


@cache
def _seeds(root: int, purpose: str) -> Seeds:
    return Seeds(root, purpose)


def seed_generators(root: int, purpose: str, *where: int) -> None:
    """Set the global generators of torch (every device), `random` and NumPy from one place."""
    _seeds(root, purpose).set(*where)
