"""What the kernel knows of a process: in which wait each thread is, and whether it has moved.

Owns `/proc`. Where there is none, or it may not be read, all answers are "unknown", and nothing is concluded.
"""

import os
from pathlib import Path
from typing import Literal

Wait = Literal["lock", "shared lock", "timed", "sleep", "read", "child", "poll", "running", "unknown"]
"""How a thread waits: for a lock of its own process, or one that several share, without an end; for anything
with a timeout; for time to pass; for input; for a child to end; for one of several files."""

_CALLS: dict[str, dict[int, str]] = {
    "x86_64": {
        202: "futex", 230: "sleep", 35: "sleep", 0: "read", 61: "child", 247: "child",
        7: "poll", 271: "poll", 23: "poll", 270: "poll", 232: "poll", 281: "poll", 45: "read", 47: "read",
    },
    "aarch64": {
        98: "futex", 115: "sleep", 101: "sleep", 63: "read", 260: "child", 95: "child",
        73: "poll", 72: "poll", 22: "poll", 207: "read", 212: "read",
    },
}  # fmt: skip
_FUTEX_PRIVATE = 128
_PROC = Path("/proc")
_STATE, _PARENT = 0, 1
"""Where the state is in `/proc/PID/stat`, after the name."""


def wait_of(pid: int, *, thread: int | None = None) -> tuple[Wait, int]:
    """Return how a thread waits, its main thread if none is given, and the first argument of the call.

    That is the number of the file for a read.
    """
    text = _read(_PROC / str(pid) / "task" / str(thread or pid) / "syscall")
    if text is None:
        return "unknown", 0
    if text.startswith("running"):
        return "running", 0
    words = text.split()
    try:
        number, arguments = int(words[0]), [int(word, 16) for word in words[1:5]]
    except (ValueError, IndexError):
        return "unknown", 0
    kind = _CALLS.get(os.uname().machine, {}).get(number, "unknown")
    if kind == "futex" and len(arguments) > 3:
        if arguments[3]:
            return "timed", 0
        return ("lock" if arguments[1] & _FUTEX_PRIVATE else "shared lock"), 0
    return kind, arguments[0] if arguments else 0  # type: ignore[return-value]


def switches_of(pid: int, *, thread: int | None = None) -> int | None:
    """Return how often a thread has stopped running: the same number twice means that it did nothing."""
    text = _read(_PROC / str(pid) / "task" / str(thread or pid) / "status")
    if text is None:
        return None
    lines = [line for line in text.splitlines() if "ctxt_switches" in line]
    return sum(int(line.split()[1]) for line in lines) if lines else None


def state_of(pid: int) -> str:
    """Return the letter of a process's state (`T` is stopped, `Z` ended); empty if there is none."""
    fields = _stat(pid)
    return fields[_STATE] if fields else ""


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped a process."""
    return state_of(pid) in ("T", "t")


def is_locked_up(pid: int) -> bool:
    """Whether every thread of a process waits for a lock of that process: none is left to release it."""
    waits = [wait_of(pid, thread=thread)[0] for thread in threads_of(pid)]
    return bool(waits) and all(wait == "lock" for wait in waits)


def is_own_pipe(pid: int, file: int) -> bool:
    """Whether a file is a pipe that no other process has open, so that none can write into it."""
    pipe = _link(_PROC / str(pid) / "fd" / str(file))
    if not pipe.startswith("pipe:["):
        return False
    others = (path for path in _PROC.glob("[0-9]*") if path.name != str(pid))
    return not any(pipe == _link(held) for other in others for held in _listed(other / "fd"))


def parent_of(pid: int) -> int:
    """Return the process that has started this one; 0 if that is not known."""
    fields = _stat(pid)
    return int(fields[_PARENT]) if fields else 0


def threads_of(pid: int) -> list[int]:
    """Return the threads of a process."""
    return sorted(int(path.name) for path in _listed(_PROC / str(pid) / "task"))


def children_of(pid: int) -> list[int]:
    """Return the processes that any thread of this one has started and that still run."""
    found: list[int] = []
    for thread in threads_of(pid):
        text = _read(_PROC / str(pid) / "task" / str(thread) / "children")
        found += [int(word) for word in (text or "").split()]
    return sorted(found)


def words_of(pid: int) -> list[str]:
    """Return the command line of a process."""
    text = _read(_PROC / str(pid) / "cmdline")
    return [word for word in (text or "").split("\0") if word]


def environment_of(pid: int) -> dict[str, str]:
    """Return the variables that a process was started with."""
    pairs = (word.partition("=") for word in (_read(_PROC / str(pid) / "environ") or "").split("\0"))
    return {name: value for name, _, value in pairs if name}


def _stat(pid: int) -> list[str]:
    text = _read(_PROC / str(pid) / "stat")
    return text.rpartition(")")[2].split() if text else []


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return None


def _link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - `pipe:[123]` is no path
    except OSError:
        return ""


def _listed(folder: Path) -> list[Path]:
    """Return what is in a folder; nothing if it may not be read, as of processes of other users."""
    try:
        return [*folder.iterdir()]
    except OSError:
        return []
