"""How many processor cores there are for this process."""

import os


def num_cores() -> int:
    """Return how many cores this process may use: fewer than the machine has, if it was granted fewer.

    >>> num_cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
