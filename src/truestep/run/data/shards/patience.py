"""Trying again: how often, how long, and what is said when it was in vain.

Owns the user's settings for reading shards, and the error that names a shard.
"""

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from truestep.errors import ShardUnreadable, TruestepError, UsageError
from truestep.run.data.shards.urls import short_name

T = TypeVar("T")
GIGABYTE = 10**9
_MAKE_ROOM = "Make room on the disk, or keep shards on another one: cache=ShardCache(folder=...)."


@dataclass(frozen=True, kw_only=True)
class ShardCache:
    """Where shards are kept on this machine, how much of them, and how patiently they are fetched.

    `folder` is shared by all processes of the machine; None is `~/.cache/truestep/shards`. Shards that were
    not used for longest go first when there are more than `max_bytes`, never one that is open. A shard is
    tried `num_tries` times, with pauses that begin at `pause_s` and double. How long a try waits for an
    answer is set in the file system's options: `Shards(storage=...)`.
    """

    folder: str | Path | None = None
    max_bytes: int = 100 * GIGABYTE
    num_tries: int = 5
    pause_s: float = 0.5

    def __post_init__(self) -> None:
        if self.num_tries < 1 or self.pause_s < 0 or self.max_bytes < 0:
            raise UsageError(
                "a ShardCache needs num_tries from 1 on, pause_s and max_bytes from 0 on, got"
                f" {self}. Leave out what you do not need to change."
            )

    @property
    def path(self) -> Path:
        """The folder itself."""
        return Path.home() / ".cache" / "truestep" / "shards" if self.folder is None else Path(self.folder)


class Damaged(Exception):
    """What was found at a shard's place is not what the index says."""


def persist(attempt: Callable[[], T], *, url: str, settings: ShardCache, advice: str | None = None) -> T:
    """Return what an attempt returns, tried again with growing pauses; name the file if none succeeds."""
    begun_s = time.monotonic()
    for tried in range(1, settings.num_tries + 1):
        try:
            return attempt()
        except TruestepError:
            raise
        except Exception as error:  # noqa: BLE001 - file systems raise what they like; it is told below
            last = error
        if tried < settings.num_tries:
            time.sleep(settings.pause_s * 2 ** (tried - 1))
    raise ShardUnreadable(
        f"{url} {_what_is_wrong(last)}. It was tried {settings.num_tries} times in"
        f" {time.monotonic() - begun_s:.1f} s."
        f" {_MAKE_ROOM if _has_no_room(last) else advice or _repair(url)}"
    ) from last


def _repair(url: str) -> str:
    return f"Repair it, or leave {short_name(url)!r} out of the names and write the index again."


def _has_no_room(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def _what_is_wrong(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "is missing"
    if isinstance(error, Damaged | TimeoutError):
        return str(error)
    if _has_no_room(error):
        return f"could not be kept on this machine ({error})"
    return f"could not be read ({type(error).__name__}: {error})"
