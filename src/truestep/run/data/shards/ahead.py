"""Fetching ahead: the next window's shards are brought here while samples of this one are read.

Owns the process that does it. Leaves which shards come next to `windows`, fetching to `cache`.
"""

import os
import signal
import warnings
from collections.abc import Sequence
from typing import Any

from truestep.base.lifetime import end_with_parent
from truestep.errors import TruestepError
from truestep.run.data.shards.cache import Cache
from truestep.run.data.shards.index import Shard
from truestep.run.data.shards.urls import local_path

_LONGEST_S = 3600


class Ahead:
    """At most one process that fetches ahead for this one; what another is fetching already is left to it."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._child = self._owner = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"_cache": self._cache, "_child": 0, "_owner": 0}

    def begin(self, shards: Sequence[Shard], *, during: Sequence[Shard]) -> None:
        """Start to fetch shards, once those that are read meanwhile are here, if there is room for both."""
        wanted = [shard for shard in shards if _takes_long(shard)]
        if not wanted or self._is_busy():
            return
        if sum(shard.num_bytes for shard in (*wanted, *during)) > self._cache.settings.max_bytes:
            return
        if all(self._cache.is_ready(shard) for shard in during):
            wanted = [shard for shard in wanted if not self._cache.is_ready(shard)]
            if wanted:
                self._start(wanted)

    def _is_busy(self) -> bool:
        if self._owner != os.getpid() or self._child == 0:
            return False
        try:
            ended, _ = os.waitpid(self._child, os.WNOHANG)
        except ChildProcessError:
            ended = self._child
        if ended:
            self._child = 0
        return not ended

    def _start(self, shards: Sequence[Shard]) -> None:
        parent = os.getpid()
        with warnings.catch_warnings():
            # Newer Pythons warn of threads in the parent. None of their locks is needed by what follows.
            warnings.simplefilter("ignore", DeprecationWarning)
            # bits: a process, not a thread: libraries draw pauses between tries from the global generators.
            child = os.fork()
        if child:
            self._child, self._owner = child, parent
            return
        try:
            _end_with(parent)
            for shard in shards:
                self._cache.prepare(shard)
        except TruestepError:
            pass  # whoever needs the shard tries again, and tells
        finally:
            os._exit(0)


def _takes_long(shard: Shard) -> bool:
    return local_path(shard.url) is None or shard.kind == "parquet"


def _end_with(parent: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    # Nobody may wait for ever for a shard that this process has claimed.
    signal.alarm(_LONGEST_S)
    if not end_with_parent(parent):
        os._exit(0)
