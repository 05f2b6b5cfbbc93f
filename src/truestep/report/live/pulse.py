"""Whether the processes of a run still run, as seen from outside.

Owns asking the system about other processes. Those of another machine cannot be asked.
"""

import os
import platform
from pathlib import Path
from typing import Protocol

_SLACK_S = 5.0
"""Clocks are set, and a process is older than what it first writes."""


class Started(Protocol):
    """What is asked about: processes, where, and since when."""

    pids: list[int]
    host: str
    time_s: float


def are_alive(life: Started) -> list[bool | None]:
    """Return for each process whether it runs; None where it is on another machine."""
    if life.host and life.host != platform.node():
        return [None] * len(life.pids)
    return [_is_alive(pid, since_s=life.time_s) for pid in life.pids]


def _is_alive(pid: int, *, since_s: float) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)  # signal 0 is none: it only asks
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's, so there is one
    stat = Path(f"/proc/{pid}/stat")
    try:
        fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        state, started_ticks = fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return not Path("/proc/self/stat").exists()  # no such files on this system: what was said above holds
    # A number is given anew when its process has ended: one that began after the run's start is another one.
    is_same = _boot_s() + started_ticks / os.sysconf("SC_CLK_TCK") <= since_s + _SLACK_S
    return state not in "ZX" and is_same


def _boot_s() -> float:
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0
