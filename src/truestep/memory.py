"""How much memory this process has used at most, what a copy of it may take, and what is freed.

Owns where the numbers come from (the device if there is one, else the process), and what glibc is told.
"""

import ctypes
import os
import resource
import sys

import torch

from truestep.device import module_in_use

_STATUS = "/proc/self/status"
_KIB = 1024
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of `mallopt`: how much may lie free at a heap's end, and from which size on memory is mapped by itself."""
FREE_BYTES, MAPPED_BYTES = 2**30, 2**25
"""The second is the most that glibc takes."""
_SMALL, _SMALL_ROOM = 2**31, 2**28
_OWN_MAPPING = 2**18
"""From which size on a copy's memory is mapped by itself."""


def peak_bytes() -> int:
    """Return the most memory that was in use so far.

    >>> peak_bytes() > 1_000_000
    True
    """
    if module_in_use() is not None:
        return torch.accelerator.max_memory_allocated()
    return process_peak_bytes()


def process_peak_bytes() -> int:
    """Return the same for the process alone, whatever is on a device."""
    peak = _status("VmHWM")
    if peak is not None:
        return peak
    # It may be that of whoever started this process, where that one is larger. On macOS it is in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else _KIB)


def keep_freed() -> None:
    """Keep freed memory instead of giving it back and asking for it again; only glibc can be told to."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, FREE_BYTES)
        mallopt(_MMAP_THRESHOLD, MAPPED_BYTES)


def held_bytes() -> int | None:
    """Return the memory that this process holds, without what it maps from files; None if not on Linux."""
    numbers = _read("/proc/self/statm").split()
    return (int(numbers[1]) - int(numbers[2])) * resource.getpagesize() if numbers else None


def own_bytes() -> int | None:
    """Return the memory that no other process shares: a forked one shares until it writes. None as above."""
    lines = [line for line in _read("/proc/self/smaps_rollup").splitlines() if line.startswith(b"Private_")]
    return sum(int(line.split()[1]) for line in lines) * _KIB if lines else None


def room_bytes() -> int | None:
    """Return what a copy of this process may take without a higher peak of both; None if not on Linux.

    A process of less than 2 GiB has room for a bit more: nobody runs out of memory by it.
    """
    peak, now = _status("VmHWM"), _status("VmRSS")
    if peak is None or now is None:
        return None
    return max(peak - now + peak // 100, _SMALL_ROOM if peak < _SMALL else 0)


def limit_growth(room: int) -> None:
    """Let this process, a copy of another, take no more memory than this."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    data = _status("VmData")
    if mallopt is not None and data is not None:
        # What is free in the heap is shared with the other process: written to, it counts twice.
        mallopt(_MMAP_THRESHOLD, _OWN_MAPPING)
        resource.setrlimit(resource.RLIMIT_DATA, (data + room, data + room))


def is_too_little(error: BaseException) -> bool:
    """Whether an error says that memory could not be had."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def _status(name: str) -> int | None:
    """Return a size from what Linux tells of this process."""
    prefix = f"{name}:".encode()
    line = next((line for line in _read(_STATUS).splitlines() if line.startswith(prefix)), None)
    return None if line is None else int(line.split()[1]) * _KIB


def _read(path: str) -> bytes:
    """Return the first part of a file, nothing if there is none. Not by `open`: a script may replace that."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(file, 1 << 14)
    finally:
        os.close(file)
