"""Threads one after the other: what the user's own lines start has ended before they go on.

Owns `Thread.start`, `ThreadPoolExecutor.submit` and `as_completed`. Threads of torch, of loaders and of other
packages are left alone; one that waits for something that comes later is let go after a while, and told.
"""

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

Function = Callable[..., Any]
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


def hold_threads(tape: Tape) -> None:
    """Run each thread to its end inside `start`."""
    if "threads" in tape.plan.hold:
        Wraps().put("start", lambda start: _wrap_start(start, tape), threading.Thread)


def hold_pools(tape: Tape) -> None:
    """Run what is submitted to a pool of threads at once."""
    if "threads" in tape.plan.hold:
        pool = sys.modules["concurrent.futures.thread"].ThreadPoolExecutor
        Wraps().put("submit", lambda submit: _wrap_submit(submit, tape), pool)


def hold_completed(tape: Tape) -> None:
    """Let `as_completed` give what is done in the order in which it was submitted."""
    if "threads" in tape.plan.hold:
        futures = sys.modules["concurrent.futures"]
        Wraps().put("as_completed", lambda act: _wrap_completed(act, tape), futures._base, futures)


def _wrap_start(start: Function, tape: Tape) -> Function:
    def wrapper(self: threading.Thread) -> None:
        is_own = tape.sites.reached() is not None
        try:
            start(self)
        except BaseException as error:
            drop_frame(error)
            raise
        if is_own and not _await(lambda: _join(self), [self]):
            _tell(tape, f"thread {self.name}")

    return wrapper


def _join(thread: threading.Thread) -> bool:
    thread.join(_LOOK_S)
    return not thread.is_alive()


def _wrap_submit(submit: Function, tape: Tape) -> Function:
    numbers = itertools.count()

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        is_own = tape.sites.reached(_POOLS) is not None
        try:
            future = submit(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        if is_own:
            future._truestep_number = next(numbers)
            wait = sys.modules["concurrent.futures"].wait
            if not _await(lambda: bool(wait([future], _LOOK_S).done), args[0]._threads):
                _tell(tape, "work submitted to a pool")
        return future

    return wrapper


def _wrap_completed(as_completed: Function, tape: Tape) -> Function:
    def wrapper(fs: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        if tape.sites.reached() is None:
            return as_completed(fs, timeout)  # type: ignore[no-any-return]
        given = sorted(dict.fromkeys(fs), key=lambda future: getattr(future, "_truestep_number", -1))
        done = [future for future in given if future.done()]
        left = [future for future in given if future not in done]
        return (future for part in (done, as_completed(left, timeout)) for future in part)

    return wrapper


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


def _tell(tape: Tape, what: str) -> None:
    if tape.is_on:
        tape.write("trouble", error=f"{what} waits for others or takes long, and is not held still")
