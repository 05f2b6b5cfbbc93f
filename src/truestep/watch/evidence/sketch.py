"""Sketches: a few numbers from which the distance of two runs' tensors can be estimated.

Owns what they are and how far apart two are. Each number is a sum of all elements with signs that depend on
their place in the tensor alone: not on names, nor on the order of tensors. Imports no torch.
"""

import hashlib
import math

import numpy as np
import numpy.typing as npt

NUM_SUMS = 8
_ROW = 1024
_CHUNK = 1 << 20
_ODD = np.uint64(0x9E3779B97F4A7C15)
_signs: list[npt.NDArray[np.float64]] = []

Sketch = list[float | None]
"""The norm, then the sums; None where one is not finite."""


def sums_of(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the sums of one flat array."""
    if not _signs:
        drawn = hashlib.shake_128(b"truestep.watch.digests.sketch").digest(_ROW * NUM_SUMS // 8)
        bits = np.unpackbits(np.frombuffer(drawn, dtype=np.uint8)).reshape(_ROW, NUM_SUMS)
        _signs.append(1.0 - 2.0 * bits.astype(np.float64))
    total = np.zeros(NUM_SUMS)
    for begin in range(0, values.size, _CHUNK):
        part = values[begin : begin + _CHUNK]
        part = np.pad(part, (0, -part.size % _ROW)).reshape(-1, _ROW)
        rows = (np.arange(len(part), dtype=np.uint64) + np.uint64(begin // _ROW)) * _ODD
        flips = 1.0 - 2.0 * ((rows[:, None] >> np.arange(50, 50 + NUM_SUMS, dtype=np.uint64)) & np.uint64(1))
        total += ((part @ _signs[0]) * flips).sum(axis=0)
    return total


def distance(ours: Sketch, theirs: Sketch) -> float | None:
    """Return how far apart two are, as a part of their norm; None if that is not known."""
    if None in ours or None in theirs:
        return None if ours == theirs else math.inf
    one, other = np.array(ours, dtype=np.float64), np.array(theirs, dtype=np.float64)
    scale = max(one[0], other[0])
    with np.errstate(all="ignore"):
        apart = float(np.sqrt(np.mean((one[1:] - other[1:]) ** 2)) / scale) if scale else 0.0
    return math.inf if math.isnan(apart) else apart
