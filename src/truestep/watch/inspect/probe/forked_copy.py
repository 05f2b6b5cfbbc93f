"""A forked copy of this process in which code of the user's may run: nothing of that reaches the script.

Owns that the copy writes to no file, prints nothing and ends. What it finds comes back through a pipe.
"""

import gc
import inspect
import io
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, NoReturn

import torch

from truestep.base.memory import is_out_of_memory, limit_growth, room_bytes
from truestep.watch.evidence.kinds import NOT_CHECKED

_PATIENCE_S = 60.0
_BLOCK = 1 << 16
_HARMLESS = frozenset({"os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.putenv", "os.unsetenv"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_REACH_OUT = ("os.", "shutil.", "socket.", "subprocess.", "tempfile.", "sqlite3.", "webbrowser.")


class ApartError(Exception):
    """The copy could not be made, failed or took too long."""


def run_apart(act: Callable[[], Any], *, patience_s: float = _PATIENCE_S, is_small: bool = True) -> Any:
    """Return what a function gives in a forked copy of this process, as JSON has it.

    A copy that `is_small` does not raise the peak of memory: what needs more fails.
    """
    if not hasattr(os, "fork"):
        raise ApartError("this system cannot fork a process")
    if _is_end_noticed():
        raise ApartError("not made: the script handles SIGCHLD, which the end of a copy would send to it")
    reading, writing = os.pipe()
    room = room_bytes() if is_small else None
    pid = os.fork()
    if not pid:
        _be_copy(act, writing, room)
    os.close(writing)
    answer = b""
    try:
        answer = _read(reading, patience_s)
    finally:
        os.close(reading)
        if not answer:
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # the script may wait for all its children, or for none
            os.waitpid(pid, 0)
    reply = json.loads(answer)
    if reply.get("room"):
        most = f"{reply['room'] / 2**20:.0f} MiB"
        raise ApartError(f"{NOT_CHECKED}a copy needs more than the {most} that fit below the peak of memory")
    if "error" in reply:
        raise ApartError(reply["error"])
    return reply["found"]


def _is_end_noticed() -> bool:
    """Whether the script would notice that a process which it did not start has ended."""
    handler: Any = signal.getsignal(signal.SIGCHLD)
    if getattr(handler, "__module__", "") == "torch.utils.data._utils.signal_handling":
        # A loader's: it looks at its own workers only, and calls the one that was there before.
        handler = inspect.getclosurevars(handler).nonlocals.get("previous_handler") or signal.SIG_DFL
    is_handled = handler not in (signal.SIG_DFL, signal.SIG_IGN)
    return is_handled or signal.SIGCHLD in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def _read(reading: int, patience_s: float) -> bytes:
    """Return all that the copy writes: it may wait for a lock that a thread of the script holds."""
    found: list[bytes] = []
    until = monotonic() + patience_s
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while poll.poll(max(0.0, until - monotonic()) * 1000):
        block = os.read(reading, _BLOCK)
        if not block:
            return b"".join(found) or b'{"error": "the copy of the process was killed"}'
        found.append(block)
    raise ApartError(f"no answer within {patience_s:.0f} s")


def _be_copy(act: Callable[[], Any], writing: int, room: int | None) -> NoReturn:
    try:
        if room is not None:
            limit_growth(room)
        gc.disable()  # what is collected may have a say in it
        _cut_off(writing)
        kept = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)  # one that goes would be flushed
        # New ones: a thread that is not copied may hold the lock of the old.
        sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = io.StringIO()  # type: ignore[misc, assignment]
        torch.set_num_threads(1)  # threads are not copied
        sys.addaudithook(_refuse)
        with torch._C._EnableTorchFunction():
            answer = json.dumps({"found": act()})
        del kept
    except BaseException as error:  # noqa: BLE001 - reported
        is_short = is_out_of_memory(error.__cause__ or error)  # what ends a whole look has it as its cause
        answer = json.dumps({"error": f"{type(error).__name__}: {error}", "room": is_short and room})
    try:
        left = answer.encode()
        while left:
            left = left[os.write(writing, left) :]
    finally:
        os._exit(0)


def _cut_off(writing: int) -> None:
    """Let all that is open lead nowhere: files and connections are the script's too."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in [int(name) for name in os.listdir("/dev/fd")]:  # noqa: PTH208 - imports less
        if number not in (writing, nowhere):
            with suppress(OSError):
                os.fstat(number)  # the listing's own is closed by now
                os.dup2(nowhere, number)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    """Stop what would be seen outside of the copy."""
    if event == "open":
        is_seen = bool(args[2] & _WRITING)
    else:
        is_seen = event.startswith(_REACH_OUT) and event not in _HARMLESS
    if is_seen:
        raise PermissionError(f"{event}: a probe changes nothing outside of its process")
