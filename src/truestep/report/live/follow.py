"""Following a run from outside: what its record has gained since the last look, which processes live.

Owns reading a file that another process writes, and asking the system about processes.
"""

import os
import platform
import stat
from pathlib import Path
from typing import Any

from truestep import record
from truestep.base.plainfile import open_at_once
from truestep.errors import TruestepError
from truestep.report.runs import Life

_SLACK_S = 5.0
"""Clocks are set, and a process is older than what it first writes."""


class Follower:
    """Reads a growing record. The file may be missing still, be cut or replaced, or end in half a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start_over(None)

    def _start_over(self, inode: int | None) -> None:
        self._inode, self._offset, self._rest = inode, 0, b""
        self.num_unread = 0
        """Lines that are no events: torn by a kill, or not ours."""

    def look(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the events that were completed since the last look, and whether earlier ones are void."""
        is_void = False
        try:
            with open(self._path, "rb", opener=open_at_once) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise FileNotFoundError(self._path)  # a pipe in its place is not waited for
                if self._inode != status.st_ino or status.st_size < self._offset:
                    is_void = self._inode is not None
                    self._start_over(status.st_ino)
                file.seek(self._offset)
                data = file.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            is_void = self._inode is not None
            self._start_over(None)
            return [], is_void
        except OSError as error:
            raise TruestepError(f"{self._path} cannot be read ({error.strerror}).") from error
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        lines = [line for line in lines if line.strip()]
        events = record.parse(self._path, lines)
        self.num_unread += len(lines) - len(events)
        return events, is_void


def are_alive(life: Life) -> list[bool | None]:
    """Return for each process whether it runs; None where it is on another machine."""
    if life.host and life.host != platform.node():
        return [None] * len(life.pids)
    return [_is_alive(pid, since_s=life.time_s) for pid in life.pids]


def _is_alive(pid: int, *, since_s: float) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)  # signal 0 only asks
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's process
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        state, started_ticks = fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return not Path("/proc/self/stat").exists()  # a system without such files
    # Numbers are used again: a process that began after the run's start is another one.
    boot_s = Path("/proc/stat").read_text().partition("\nbtime ")[2].partition("\n")[0]
    is_same = int(boot_s or 0) + started_ticks / os.sysconf("SC_CLK_TCK") <= since_s + _SLACK_S
    return state not in "ZX" and is_same
