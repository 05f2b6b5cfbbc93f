"""How much memory this process has used at most: the device's if there is one, else its own.

Owns where the number comes from.
"""

import resource
import sys

import torch

_STATUS = "/proc/self/status"
_KIB = 1024


def peak_bytes() -> int:
    """Return the most memory that was in use so far.

    >>> peak_bytes() > 1_000_000
    True
    """
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return process_peak_bytes()


def process_peak_bytes() -> int:
    """Return the same for the process alone, whatever is on a device."""
    try:
        with open(_STATUS, "rb") as status:  # noqa: PTH123 - quicker, and this is called while training
            peak = next((line for line in status if line.startswith(b"VmHWM:")), None)
    except OSError:  # not Linux
        peak = None
    if peak is not None:
        return int(peak.split()[1]) * _KIB
    # It may be that of whoever started this process, where that one is larger. On macOS it is in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else _KIB)
