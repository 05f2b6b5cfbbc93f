"""Shards on this machine, in a folder that all its processes share: each is fetched and prepared once.

Owns that folder: what is in it, who may remove what. Leaves trying again to `patience`, reading to `opened`.
"""

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from truestep.base import arrow, rng
from truestep.errors import UsageError
from truestep.run.data.shards import remote, tar
from truestep.run.data.shards.index import Shard
from truestep.run.data.shards.lock import ALONE, SHARED, Lock
from truestep.run.data.shards.patience import Damaged, ShardCache, persist
from truestep.run.data.shards.urls import local_path, short_name

READY = {"tar": "offsets", "parquet": "rows", "arrow": "whole"}
"""The file that is written last, by kind: where samples begin; the rows decoded; nothing but its name."""
_CHUNK = 1 << 20
_LONGEST_NAME = 80
_PAUSE_S = 0.01


@dataclass(frozen=True, kw_only=True)
class Held:
    """A shard's files on this machine, which stay until the lock is released."""

    raw: Path
    ready: Path
    lock: Lock


@dataclass(kw_only=True)
class Entry:
    """A shard's files in the folder, whoever put them there."""

    name: str
    used_s: float = 0.0
    num_bytes: int = 0
    suffixes: list[str] = field(default_factory=list)


class Cache:
    """The folder of shards."""

    def __init__(self, settings: ShardCache, storage: Mapping[str, Any]) -> None:
        self.settings = settings
        self.storage = storage
        self.folder = settings.path.absolute()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the folder for shards {self.folder} cannot be made: {error}."
                " Pass cache=ShardCache(folder=...) with one that can be written."
            ) from error

    def hold(self, shard: Shard) -> Held:
        """Return a shard's files, fetched and prepared if they are not here."""
        entry = persist(lambda: self._entry(shard), url=shard.url, settings=self.settings)
        held = self._held(shard, entry)
        held.lock.acquire(SHARED)  # waits while somebody makes it
        while not self._is_ready(shard, held):
            held.lock.release()
            # Never wait to be alone: whoever made it meanwhile may keep it open for as long as it likes.
            if held.lock.acquire(ALONE, waits=False):
                self._make(shard, held)
            else:
                time.sleep(_PAUSE_S)
            held.lock.acquire(SHARED)
        os.utime(held.ready)
        return held

    def tidy(self) -> None:
        """Remove what was not used for longest while there is too much; what is open stays."""
        guard = Lock(self.folder / "tidy.lock")
        if not guard.acquire(ALONE, waits=False):
            return
        entries = self._entries()
        too_much = sum(entry.num_bytes for entry in entries) - self.settings.max_bytes
        for entry in sorted(entries, key=lambda entry: entry.used_s):
            if too_much <= 0:
                break
            lock = Lock(self.folder / f"{entry.name}.lock")
            if lock.acquire(ALONE, waits=False):
                # First of all what says that the rest is there.
                for suffix in sorted(entry.suffixes, key=lambda suffix: suffix not in READY.values()):
                    (self.folder / f"{entry.name}.{suffix}").unlink(missing_ok=True)
                lock.remove()
                lock.release()
                too_much -= entry.num_bytes
        guard.release()

    def _entry(self, shard: Shard) -> str:
        path = local_path(shard.url)
        changed = 0
        if path is not None:
            changed = path.stat().st_mtime_ns
        facts = f"{shard.url}\0{shard.num_bytes}\0{shard.checksum}\0{changed}"
        hashed = hashlib.blake2b(facts.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
        return f"{hashed}-{short_name(shard.url)[-_LONGEST_NAME:]}"

    def _held(self, shard: Shard, entry: str) -> Held:
        return Held(
            raw=local_path(shard.url) or self.folder / f"{entry}.raw",
            ready=self.folder / f"{entry}.{READY[shard.kind]}",
            lock=Lock(self.folder / f"{entry}.lock"),
        )

    def _is_ready(self, shard: Shard, held: Held) -> bool:
        try:
            is_whole = shard.kind == "parquet" or held.raw.stat().st_size == shard.num_bytes
            return is_whole and held.ready.is_file()
        except FileNotFoundError:
            return False

    def _make(self, shard: Shard, held: Held) -> None:
        if self._is_ready(shard, held):
            return
        try:
            # bits: libraries draw pauses between tries; whether a shard was here already must not be seen.
            with rng.kept_generators():
                persist(lambda: self._try(shard, held), url=shard.url, settings=self.settings)
        except BaseException:
            held.lock.release()  # whoever keeps the error must not keep the others waiting
            raise
        self.tidy()

    def _try(self, shard: Shard, held: Held) -> None:
        part = held.ready.with_suffix(".part")  # the lock is held alone: nobody else writes it
        is_local = local_path(shard.url) is not None
        if not is_local:
            self._fetch(shard, held.raw, part)
        check_bytes(shard, held.raw)
        num_samples = _prepare(shard.kind, held.raw, part)
        if num_samples != shard.num_samples:
            raise Damaged(f"has {num_samples:,} samples where the index lists {shard.num_samples:,}")
        part.replace(held.ready)
        if shard.kind == "parquet" and not is_local:
            held.raw.unlink()

    def _fetch(self, shard: Shard, raw: Path, part: Path) -> None:
        remote.fetch(shard.url, part, storage=self.storage)
        check_bytes(shard, part)
        part.replace(raw)

    def _entries(self) -> list[Entry]:
        found: dict[str, Entry] = {}
        with os.scandir(self.folder) as files:
            for file in files:
                name, _, suffix = file.name.rpartition(".")
                if suffix in ("raw", "part", *READY.values()):
                    try:
                        facts = file.stat()
                    except FileNotFoundError:
                        continue  # it was given its last name just now
                    entry = found.setdefault(name, Entry(name=name))
                    entry.used_s = max(entry.used_s, facts.st_mtime)
                    entry.num_bytes += facts.st_size
                    entry.suffixes.append(suffix)
        return list(found.values())


def check_bytes(shard: Shard, path: Path) -> None:
    """Raise if a file is not the one that the index means."""
    num_bytes = path.stat().st_size
    if num_bytes != shard.num_bytes:
        raise Damaged(f"has {num_bytes:,} bytes where the index lists {shard.num_bytes:,}")
    if shard.checksum is not None and checksum_of(path) != shard.checksum:
        raise Damaged("has other bytes than the index lists (its checksum differs)")


def checksum_of(path: Path) -> str:
    """Return the checksum of a file's bytes."""
    hashed = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hashed.update(chunk)
    return hashed.hexdigest()


def find_samples(path: Path) -> tar.Offsets:
    """Return where the samples of a tar file begin."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return tar.find_samples(lambda at, size: os.pread(file, size, at), num_bytes=os.fstat(file).st_size)
    finally:
        os.close(file)


def count_rows(path: Path) -> int:
    """Return the number of rows of an Arrow file."""
    rows = arrow.Rows(path)
    try:
        return len(rows)
    finally:
        rows.close()


def _prepare(kind: str, raw: Path, part: Path) -> int:
    """Write what reading samples needs besides the shard itself, and return how many there are."""
    if kind == "parquet":
        return arrow.decode_parquet(raw, part)
    if kind == "arrow":
        part.touch()
        return count_rows(raw)
    offsets = find_samples(raw)
    with part.open("wb") as file:
        np.save(file, offsets)
    return len(offsets) - 1
