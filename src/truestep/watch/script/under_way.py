"""What the script is in the middle of: a pass, a step, a batch; and the one thread that is observed in it.

Owns these states. Hooks begin and end them, inspectors read them. They read gradients, which another thread's
backward pass writes without Python's lock: so they are told of one thread's training only, and never by two
threads at once.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CALLS, GOES_BACK, _GOES_BACK_IN_MAIN, STEPS = range(4)
"""What a call says of its thread, from little to much: which one trains is seen from what it does."""


class UnderWay:
    """What is under way in the thread that trains."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        """Called once a step is not observed, as another thread trains."""
        self._is_elsewhere = False
        self.is_late = False
        """Whether a step shows that this thread is the one that trains: its passes were not observed."""
        self.is_inside = False
        """Whether a forward or a backward pass is under way: what is called in it is a part of it."""
        self.is_in_backward = False
        self.is_stepping = False
        """Whether a step without a closure is under way."""
        self.is_fetching = False
        """Whether a loader is making a batch."""
        self.is_copying = False
        """Whether watching makes a copy of the process; see `child_processes`."""
        self.forward_site = self.backward_site = 0
        """The user's lines of the last passes, looked up once for all."""
        self.loss: float | None = None
        """What the last backward pass began at, if that is one real number on the CPU."""
        self.thread = 0
        """The id of the one thread whose training is observed; see `enter`."""
        self.is_shared = False
        """Whether another thread has run a backward pass or a step beside it: gradients may be its own."""
        self._owner: threading.Thread | None = None
        self._rank = CALLS
        self._has_missed = False
        """Whether a call of the thread that trains was not observed since its last backward pass."""
        self._turn = threading.RLock()
        """Held while a call is observed, by whoever makes it; nobody ever waits for it."""
        self._was_inside = False

    def begin_backward(self) -> None:
        """A backward pass runs, maybe in a forward pass."""
        self._was_inside = self.is_inside
        self.is_stepping = False  # the last step may have raised
        self.is_in_backward = self.is_inside = True

    def end_backward(self) -> None:
        """It has ended."""
        self.is_in_backward = False
        self.is_inside = self._was_inside

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Fork in here without the script's being told."""
        self.is_copying = True
        try:
            yield
        finally:
            self.is_copying = False

    def enter(self, rank: int) -> bool:
        """Whether a call of this thread is observed; if it is, `leave` must follow.

        One thread's are: the first that calls a model, until it ends, or until another one shows by more
        that it trains. The main thread's backward passes say more than others', and a step says most.
        """
        me = threading.get_ident()
        if (me != self.thread or rank > self._rank) and not self._claim(me, rank):
            self.is_shared |= rank >= GOES_BACK
            if rank == STEPS and not self._is_elsewhere:
                self._is_elsewhere = True
                self._tell()
            return False
        if not self._turn.acquire(blocking=False):  # the thread before it is still in an observed call
            self._has_missed = True
            return False
        if rank >= GOES_BACK and self._has_missed:
            self.is_late, self._has_missed = rank == STEPS, False
        return True

    def leave(self) -> None:
        """The call was observed."""
        self.is_late = False
        self._turn.release()

    def _claim(self, me: int, rank: int) -> bool:
        if rank == GOES_BACK and threading.current_thread() is threading.main_thread():
            rank = _GOES_BACK_IN_MAIN
        is_free = self._owner is None or not self._owner.is_alive()
        is_other = not is_free and me != self.thread
        if is_other and rank <= self._rank:
            return False
        self.is_shared |= is_other and self._rank >= GOES_BACK
        self._has_missed = is_other and rank == STEPS
        self._rank = rank if is_free else max(rank, self._rank)
        self._owner, self.thread = threading.current_thread(), me
        return True

    def forget_others(self) -> None:
        """Another thread of the parent's may have been observed when it forked."""
        if self._turn.acquire(blocking=False):
            self._turn.release()
        else:
            self._turn = threading.RLock()
