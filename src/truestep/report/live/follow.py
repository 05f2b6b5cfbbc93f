"""Following a record: what it has gained since the last look.

Owns reading a file that another process writes. What the events mean is up to `state`.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truestep import record
from truestep.base.plainfile import open_at_once
from truestep.errors import TruestepError

_MAX_BYTES = 8 * 2**20
"""Read in one look, so that a large record does not keep the viewer from drawing."""


@dataclass(frozen=True, kw_only=True)
class NewEvents:
    """What one look at a record gave."""

    events: list[dict[str, Any]]
    is_anew: bool
    """Whether the file is another one than before, or was cut: what was read earlier is void."""
    has_more: bool
    """Whether there was more to read than one look takes."""


class Follower:
    """Reads a growing record. The file may be missing still, be cut or replaced, or end in half a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode: int | None = None
        self._rest = b""
        self.num_unread = 0
        """Lines that are no events: torn by a kill, or not ours."""

    def look(self) -> NewEvents:
        """Return the events that were completed since the last look."""
        try:
            with open(self._path, "rb", opener=open_at_once) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise FileNotFoundError(self._path)  # a pipe in its place holds nobody
                inode, size = status.st_ino, status.st_size
                is_anew = self._inode is not None and (inode != self._inode or size < self._offset)
                if is_anew or self._inode is None:
                    self._offset, self._rest, self.num_unread = 0, b"", 0
                self._inode = inode
                file.seek(self._offset)
                data = file.read(_MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            is_gone = self._inode is not None
            self._offset, self._rest, self._inode = 0, b"", None
            return NewEvents(events=[], is_anew=is_gone, has_more=False)
        except OSError as error:
            raise TruestepError(f"{self._path} cannot be read ({error.strerror}).") from error
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        lines = [line for line in lines if line.strip()]
        events = record.parse(self._path, lines)
        self.num_unread += len(lines) - len(events)
        return NewEvents(events=events, is_anew=is_anew, has_more=self._offset < size)
