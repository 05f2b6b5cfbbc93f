"""How much of the host's memory this process has used at most, how much a copy can have, and what is freed.

Owns where the numbers come from, which errors mean that memory has run out, and what glibc is told. Does
without torch, which takes 200 MB: commands import this while a script runs.
"""

import ctypes
import errno
import os
import re
import resource
import sys
from typing import ClassVar

_STATUS = "/proc/self/status"
_KIB = 1024
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of `mallopt`: how much may lie free at a heap's end, and from which size on memory is mapped by itself."""
FREE_BYTES, MAPPED_BYTES = 2**30, 2**25
"""The second is the most that glibc takes."""
_SMALL, _SMALL_ROOM = 2**31, 2**28
_OWN_MAPPING = 2**18
"""From which size on a copy's memory is mapped by itself."""
OUT_OF_MEMORY = re.compile(r"out of ?memory|can't allocate memory|Cannot allocate memory", re.IGNORECASE)


def process_peak_bytes() -> int:
    """Return the most of the host's memory that was in use so far."""
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


def room_bytes() -> int | None:
    """Return what a copy of this process may take without a higher peak of both; None if not on Linux.

    What lies free in the heap is given back first: a copy that writes to it would hold it a second time. A
    process of less than 2 GiB has room for a bit more: nobody runs out of memory by it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    peak, now = _status("VmHWM"), _status("VmRSS")
    if peak is None or now is None:
        return None
    return max(peak - now, _SMALL_ROOM if peak < _SMALL else 0)


def limit_growth(room: int) -> None:
    """Let this process, a copy of another, take no more memory than this."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    data = _status("VmData")
    if mallopt is not None and data is not None:
        mallopt(_MMAP_THRESHOLD, _OWN_MAPPING)
        # What is free in the heap can be taken without being asked for.
        most = data + max(0, room - _free_in_heap())
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _free_in_heap() -> int:
    """Return what lies free in glibc's heaps; 0 before glibc 2.33, which cannot tell."""
    info = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if info is None:
        return 0
    info.restype = _HeapInfo
    return int(info().fordblks)


class _HeapInfo(ctypes.Structure):
    """What glibc tells of its heaps; `fordblks` is what lies free in them."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks"),
            *("fordblks", "keepcost"),
        )
    ]


def _status(name: str) -> int | None:
    """Return a size from what Linux tells of this process."""
    prefix = f"{name}:".encode()
    line = next((line for line in _read(_STATUS).splitlines() if line.startswith(prefix)), None)
    return None if line is None else int(line.split()[1]) * _KIB


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory has run out."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return True
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None


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
