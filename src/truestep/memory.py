"""How much memory this process has used at most, and whether it keeps what it frees.

Owns where the number comes from (the device if there is one, else the process), and what glibc is told.
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
    peak = next((line for line in _read(_STATUS).splitlines() if line.startswith(b"VmHWM:")), None)
    if peak is not None:
        return int(peak.split()[1]) * _KIB
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
