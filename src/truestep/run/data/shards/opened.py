"""Shards that are open: their samples, and how many are open at once.

Owns open files of one process. Leaves bringing shards here to `cache`.
"""

import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from truestep.base import arrow
from truestep.run.data.shards import tar
from truestep.run.data.shards.cache import Cache
from truestep.run.data.shards.index import Shard
from truestep.run.data.shards.lock import Lock

_NO_FILE = -1


class Samples(Protocol):
    """The samples of one open shard."""

    def read(self, place: int, /) -> dict[str, Any]:
        """Return the sample at a place."""

    def close(self) -> None:
        """Give the file free."""


class TarSamples:
    """An open tar file, read at the offsets that its table has."""

    def __init__(self, path: Path, offsets: Path) -> None:
        self._file = _NO_FILE
        self._offsets = np.load(offsets, mmap_mode="r")
        # Not mapped into memory: a file that is cut short while it is read would end the process.
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, place: int, /) -> dict[str, Any]:
        """Return the sample at a place."""
        begin, end = self._offsets[place : place + 2].tolist()
        return tar.read_sample(self._read, begin, end=end)

    def close(self) -> None:
        """Give the file free."""
        file, self._file = self._file, _NO_FILE
        if file != _NO_FILE:
            os.close(file)

    def __del__(self) -> None:
        self.close()

    def _read(self, at: int, size: int) -> bytes:
        return os.pread(self._file, size, at)


class OpenShards:
    """The shards that this process has open, by number: at most so many, those that were opened last."""

    def __init__(self, cache: Cache, *, limit: int) -> None:
        self._cache = cache
        self._limit = limit
        self._samples: dict[int, Samples] = {}
        self._locks: dict[int, Lock] = {}
        self._owner = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        # A worker opens what it needs for itself.
        return {**vars(self), "_samples": {}, "_locks": {}, "_owner": -1}

    def samples(self) -> dict[int, Samples]:
        """Return what is open now; a call for each sample would take as long as reading it does."""
        if self._owner != os.getpid():
            self._samples, self._locks, self._owner = {}, {}, os.getpid()
        return self._samples

    def open(self, number: int, shard: Shard) -> Samples:
        """Return a shard's samples, opened; the one that was opened first makes room."""
        while len(self._samples) >= self._limit:
            self._close(next(iter(self._samples)))
        held = self._cache.hold(shard)
        samples: Samples
        if shard.kind == "tar":
            samples = TarSamples(held.raw, held.ready)
        else:
            samples = arrow.Rows(held.ready if shard.kind == "parquet" else held.raw)
        self._samples[number], self._locks[number] = samples, held.lock
        return samples

    def _close(self, number: int) -> None:
        self._samples.pop(number).close()
        self._locks.pop(number).release()
