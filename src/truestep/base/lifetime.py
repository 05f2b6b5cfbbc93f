"""Processes that must not outlive the one that started them.

Owns the request to the kernel. A process that is killed cannot end its children, and one that stands still
notices nothing itself.
"""


def end_with_parent(parent: int) -> bool:
    """Have this process killed when its parent ends; return whether that parent is still there.

    Linux only: elsewhere nothing is asked. `truestep run` hands this function on as text, so it imports here.
    """
    import ctypes  # noqa: PLC0415
    import os  # noqa: PLC0415
    import signal  # noqa: PLC0415
    import sys  # noqa: PLC0415

    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
        return os.getppid() == parent
    return True
