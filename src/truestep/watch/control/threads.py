"""Threads one after the other: what the user's own lines start has ended before they go on.

Owns `Thread.start`, `ThreadPoolExecutor.submit` and `as_completed`. Threads of torch, of loaders and of other
packages are left alone; one that waits for something that comes later is let go after a while, and told.
"""

import itertools
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from truestep.watch.hooks.table import Function, Hook, put
from truestep.watch.script.tape import Tape

_POOLS = frozenset({"concurrent"})
_LOOK_S = 0.02
_MAX_LOOKS, _MAX_WAITING_LOOKS = 1500, 25
"""Half a minute for what works, half a second for what only waits."""
_WAITING_IN = (
    "concurrent.futures.thread",
    "multiprocessing.connection",
    "queue",
    "selectors",
    "socket",
    "socketserver",
    "threading",
)
"""In which modules a thread stands when it waits for others."""


def order_threads(tape: Tape) -> None:
    """Run each thread to its end inside `start`."""
    _put(tape, Hook("threading.Thread.start", _Ordered.start, changes=True))


def order_pools(tape: Tape) -> None:
    """Run what is submitted to a pool of threads at once."""
    target = "concurrent.futures.thread.ThreadPoolExecutor.submit"
    _put(tape, Hook(target, _Ordered.submit, changes=True))


def order_completed(tape: Tape) -> None:
    """Let `as_completed` give what is done in the order in which it was submitted."""
    also = ("concurrent.futures.as_completed",)
    _put(tape, Hook("concurrent.futures._base.as_completed", _Ordered.as_completed, also=also, changes=True))


def _put(tape: Tape, hook: Hook) -> None:
    if "threads" in tape.plan.frozen:
        put(tape, [hook], _Ordered(tape))


class _Ordered:
    """What the user's own lines start has ended before they go on."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._numbers = itertools.count()

    def start(self, start: Function, thread: threading.Thread) -> None:
        """Start a thread and wait for it."""
        is_own = self._tape.sites.reached() is not None
        start(thread)
        if is_own and not _await(lambda: _join(thread), [thread]):
            self._report(f"thread {thread.name}")

    def submit(self, submit: Function, pool: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Submit work to a pool and wait for it."""
        is_own = self._tape.sites.reached(_POOLS) is not None
        future = submit(pool, *args, **kwargs)
        if is_own:
            future._truestep_number = next(self._numbers)
            wait = sys.modules["concurrent.futures"].wait
            if not _await(lambda: bool(wait([future], _LOOK_S).done), pool._threads):
                self._report("work submitted to a pool")
        return future

    def as_completed(self, act: Function, fs: Iterable[Any], timeout: float | None = None) -> Any:
        """Give what is done by the order of its submission."""
        if self._tape.sites.reached() is None:
            return act(fs, timeout)
        given = sorted(dict.fromkeys(fs), key=lambda future: getattr(future, "_truestep_number", -1))
        done = [future for future in given if future.done()]
        left = [future for future in given if future not in done]
        return (future for part in (done, act(left, timeout)) for future in part)

    def _report(self, what: str) -> None:
        if self._tape.is_on:
            error = f"{what} waits for others or takes long, and is not held still"
            self._tape.write("trouble", error=error)


def _join(thread: threading.Thread) -> bool:
    thread.join(_LOOK_S)
    return not thread.is_alive()


def _await(look: Callable[[], bool], threads: Iterable[threading.Thread]) -> bool:
    """Return whether it has come to its end. Looks are counted: the clock may be held too."""
    before, num_alike = None, 0
    for _ in range(_MAX_LOOKS):
        if look():
            return True
        places = _places(list(threads))
        num_alike = num_alike + 1 if places is not None and places == before else 0
        if num_alike >= _MAX_WAITING_LOOKS:
            return False
        before = places
    return False


def _places(threads: list[threading.Thread]) -> list[tuple[int, int]] | None:
    """Return where all threads stand and wait, or None if one of them works."""
    frames, found = sys._current_frames(), []
    for thread in threads:
        frame = frames.get(thread.ident or 0)
        if frame is None or frame.f_globals.get("__name__") not in _WAITING_IN:
            return None
        found.append((id(frame.f_code), frame.f_lasti))
    return found
