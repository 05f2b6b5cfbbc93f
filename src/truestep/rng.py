"""Seeds: derived from the root seed by hashing, never carried along.

Owns how a seed is derived and how the global generators are set. Knows nothing of lanes or loaders.
"""

import hashlib
import random
import struct
from functools import cache

import numpy
import torch

VERSION = 1
"""Part of the recipe: raise it when the same root would give other seeds."""


@cache
def _keyed(root: int, purpose: str) -> "hashlib.blake2b":
    key = struct.pack("<q", root)
    return hashlib.blake2b(purpose.encode(), digest_size=24, key=key, person=b"truestep.rng")


def _words(root: int, purpose: str, *where: int) -> tuple[int, int, int]:
    hashed = _keyed(root, purpose).copy()
    hashed.update(struct.pack(f"<{len(where)}q", *where))
    first, second, third = struct.unpack("<3Q", hashed.digest())
    return first, second, third


def derive(root: int, purpose: str, *where: int) -> int:
    """Return a 63-bit seed for one purpose at one place.

    `seed + rank` and `seed + index` overlap between runs and ranks; a hash does not.

    >>> derive(7, "lane", 0, 1) == derive(7, "lane", 0, 1) != derive(7, "lane", 1, 0)
    True
    """
    return _words(root, purpose, *where)[0] >> 1


def seed_generators(root: int, purpose: str, *where: int) -> None:
    """Set the global generators of torch (every device), `random` and NumPy from one place.

    Each generator gets its own word of the hash, so that their streams are unrelated.
    """
    for_torch, for_random, for_numpy = _words(root, purpose, *where)
    # `torch.manual_seed` costs about 160 us; setting the generators themselves under 2.
    torch.default_generator.manual_seed(for_torch >> 1)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(for_torch >> 1)
    random.seed(for_random)
    numpy.random.seed(for_numpy & 0xFFFFFFFF)
