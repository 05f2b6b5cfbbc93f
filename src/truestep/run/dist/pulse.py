"""The pulse: each process gives signs of life and notices when another one no longer does.

Owns the thread that does so and the way a process ends when a peer is lost. Starting again is the launcher's.
"""

import atexit
import math
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, cast

import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.distributed_c10d import _get_default_store

from truestep.errors import UsageError

LOST_PEER = 75
"""The exit code of a process that ended because another one was lost (`EX_TEMPFAIL`: worth trying again)."""

SILENCE_S = 30.0
"""For how long a process, or the store, may give no sign of life before it counts as lost."""

_PREFIX = "truestep/pulse"
_VERDICT = f"{_PREFIX}/lost"
_ENDED = -1
_BEATS_TO_BE_SURE = 3
"""How many beats a process must miss to be named when a collective has failed already."""


@dataclass(frozen=True, kw_only=True)
class _Sign:
    """What a process last said of itself. No time: the clocks of two machines need not agree."""

    count: int
    step: int
    pid: int
    host: str

    def pack(self) -> str:
        return f"{self.count} {self.step} {self.pid} {self.host}"

    def name(self, rank: int) -> str:
        return f"rank {rank} (pid {self.pid} on {self.host})"

    @staticmethod
    def unpack(text: str) -> "_Sign":
        count, step, pid, host = text.split(" ", 3)
        return _Sign(count=int(count), step=int(step), pid=int(pid), host=host)


class Pulse:
    """A thread that beats about once a second, and ends this process when a peer has been silent too long.

    Each process watches the next living one in the order of rank, so that a beat costs the same with any
    number of them, and tells all others through torch's store. Busy is not silent: the thread beats whatever
    the main thread does. Silent is who is stopped, or whose machine is gone. The loop sets `step`.

    A process that is killed closes its connections, and the collectives of its peers fail at once.
    `end_if_lost`, which the hook for uncaught errors calls too, then names it in one line, not a traceback.

    Who holds the store (the launcher, or the first process) can be frozen or cut off as well. Nobody hears of
    anybody then, and each process ends by itself. A request to a store out of reach waits for a quarter of an
    hour, whatever its timeout (torch 2.13), so a second thread looks at how long the first waits.
    """

    def __init__(self, rank: int, size: int, *, silence_s: float | None = None) -> None:
        silence_s = SILENCE_S if silence_s is None else silence_s
        if silence_s <= 0:
            raise UsageError(
                f"silence_s must be more than 0, got {silence_s}. Pass the seconds of silence allowed."
            )
        self.step = 0
        self._rank, self._size = rank, size
        self._silence_s = silence_s
        self._beat_s = min(1.0, silence_s / 4)
        self._pid, self._host, self._parent = os.getpid(), socket.gethostname(), os.getppid()
        self._count = 0
        self._heard: tuple[int, int] | None = None
        self._heard_s = self._looked_s = self._answered_s = time.monotonic()
        self._store: Store | None = None
        self._has_spoken = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._former_hook = sys.excepthook

    def start(self) -> None:
        """Give the first sign of life and go on in the background. Alone, without a launcher: do nothing."""
        if self._thread is not None or (self._size == 1 and not dist.is_torchelastic_launched()):
            return
        if self._size > 1:
            # Of its own: a request of the main thread's that waits must not keep this one waiting.
            self._store = cast("Any", _get_default_store()).clone()
            self._send(self._count)
            self._answered_s = time.monotonic()
            threading.Thread(target=self._watch_store, name="truestep store watch", daemon=True).start()
        self._thread = threading.Thread(target=self._live, name="truestep pulse", daemon=True)
        self._thread.start()
        self._former_hook, sys.excepthook = sys.excepthook, self._on_uncaught
        atexit.register(self.close)  # who ends without a word looks like one who was lost

    def close(self) -> None:
        """Say goodbye: a process that ended is not missed."""
        atexit.unregister(self.close)
        if self._thread is None or os.getpid() != self._pid:
            return
        self._closing.set()
        self._thread.join(timeout=5 * self._beat_s)
        self._thread = None
        # Bound methods are equal, never identical.
        if sys.excepthook == self._on_uncaught:
            sys.excepthook = self._former_hook

    def explain(self, error: BaseException) -> str | None:
        """Return one sentence on the process whose loss made a collective fail, or None when it was not that.

        Takes about three beats, in which whoever is alive shows it.
        """
        if self._store is None or not _is_of_collective(error):
            return None
        try:
            before, deadline_s = self._signs(), time.monotonic() + _BEATS_TO_BE_SURE * self._beat_s
            while time.monotonic() < deadline_s:
                if self._store.check([_VERDICT]):
                    return str(self._store.get(_VERDICT).decode().partition(" ")[2])
                time.sleep(self._beat_s / 4)
            return self._find_lost(before)
        except dist.DistError:
            return "the process that holds the store of the group is gone; ending this one"

    def _on_uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self.end_if_lost(error)
        self._former_hook(kind, error, trace)

    def end_if_lost(self, error: BaseException) -> None:
        """When a collective failed because a peer is lost, end this process and name the peer."""
        if self._store is None or not _is_of_collective(error):
            return
        former = None
        if threading.current_thread() is threading.main_thread():
            # A launcher on this machine knows already, and is about to end us: nothing is left to be saved.
            former = signal.signal(signal.SIGTERM, lambda *_: os._exit(LOST_PEER))
        sentence = self.explain(error)
        if sentence is not None:
            self._end_all(sentence)
        if former is not None:
            signal.signal(signal.SIGTERM, former)

    def _live(self) -> None:
        is_connected = self._store is not None
        has_launcher = dist.is_torchelastic_launched()
        while not self._closing.wait(self._beat_s):
            if has_launcher and os.getppid() != self._parent:
                write_line(f"the launcher of rank {self._rank} (pid {self._parent}) is gone; ending it too")
                os._exit(LOST_PEER)
            if is_connected:
                is_connected = self._beat()
                # Closed is not silent: who held the store has ended, and collectives with it fail at once.
                self._answered_s = time.monotonic() if is_connected else math.inf
        if is_connected:
            self._try_to_send(_ENDED)

    def _watch_store(self) -> None:
        """End this process when a beat has waited for the store too long."""
        looked_s = time.monotonic()
        while not self._closing.wait(self._beat_s):
            now_s = time.monotonic()
            if now_s - looked_s > self._silence_s / 2:
                # This process, or the whole machine, was stopped itself: count anew.
                self._answered_s = max(self._answered_s, now_s)
            looked_s = now_s
            silent_s = now_s - self._answered_s
            if silent_s > self._silence_s:
                write_line(
                    f"rank {self._rank} (pid {self._pid} on {self._host}) has had no answer from the store "
                    f"of the group for {silent_s:.0f} s; the network or the machine that holds it is gone. "
                    f"Ending this process after step {self.step:,}"
                )
                os._exit(LOST_PEER)

    def _beat(self) -> bool:
        """Give a sign and look for one; whether the store still answers."""
        assert self._store is not None
        self._count += 1
        if not self._try_to_send(self._count):
            return False
        try:
            if self._store.check([_VERDICT]):
                self._end()
            self._look()
        except dist.DistError:
            return False
        return True

    def _look(self) -> None:
        """See whether the next living process has beaten since the last look."""
        now_s = time.monotonic()
        if now_s - self._looked_s > self._silence_s / 2:
            self._heard = None  # this process, or the whole machine, was stopped itself: count anew
        self._looked_s = now_s
        for distance in range(1, self._size):
            rank = (self._rank + distance) % self._size
            sign = self._read(rank)
            if sign is None or sign.count == _ENDED:
                continue
            if self._heard != (rank, sign.count):
                self._heard, self._heard_s = (rank, sign.count), now_s
            elif now_s - self._heard_s > self._silence_s:
                silent_s = now_s - self._heard_s
                self._end_all(
                    f"{sign.name(rank)} has given no sign of life for {silent_s:.0f} s; "
                    f"its last step was {sign.step:,}. Ending all processes"
                )
            return

    def _find_lost(self, before: dict[int, _Sign]) -> str | None:
        after = self._signs()
        for rank, sign in after.items():
            if sign.count != _ENDED and before.get(rank) == sign:
                return f"{sign.name(rank)} is gone; its last step was {sign.step:,}. Ending all processes"
        for rank, sign in after.items():
            if sign.count == _ENDED:
                return (
                    f"{sign.name(rank)} ended after step {sign.step:,} "
                    f"while others still needed it. Ending all processes"
                )
        return None

    def _end_all(self, sentence: str) -> NoReturn:
        """Tell all processes, write the line if nobody has, and end this one."""
        assert self._store is not None
        claim = f"{self._rank} {sentence}"
        try:
            is_ours = self._store.compare_set(_VERDICT, "", claim) == claim.encode()
        except dist.DistError:
            is_ours = True
        if is_ours and not self._has_spoken:  # the main thread and the pulse may find out together
            self._has_spoken = True
            write_line(sentence)
        self._end()

    def _end(self) -> NoReturn:
        """End without looking back, but not before all have had the time to hear why.

        The store may live in this process, and who is left without one would wait for ever.
        """
        time.sleep(2 * self._beat_s)
        os._exit(LOST_PEER)

    def _send(self, count: int) -> None:
        assert self._store is not None
        sign = _Sign(count=count, step=self.step, pid=self._pid, host=self._host)
        self._store.set(f"{_PREFIX}/{self._rank}", sign.pack())

    def _try_to_send(self, count: int) -> bool:
        try:
            self._send(count)
        except dist.DistError:
            return False
        return True

    def _read(self, rank: int) -> _Sign | None:
        assert self._store is not None
        key = f"{_PREFIX}/{rank}"
        return _Sign.unpack(self._store.get(key).decode()) if self._store.check([key]) else None

    def _signs(self) -> dict[int, _Sign]:
        """What each other process last said, of those that ever said something."""
        others = (rank for rank in range(self._size) if rank != self._rank)
        return {rank: sign for rank in others if (sign := self._read(rank)) is not None}


def _is_of_collective(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, says that a collective failed."""
    while error is not None:
        if isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and "gloo" in str(error).lower()
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def write_line(sentence: str) -> None:
    """Past `sys.stderr`, whose lock the main thread may hold when it is never to run again."""
    try:
        os.write(2, f"truestep: {sentence}\n".encode())
    except OSError:
        return
