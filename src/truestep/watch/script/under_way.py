"""What the script is in the middle of: a pass, a step, a batch; and the one thread whose passes are observed.

Owns these states. Hooks begin and end them, inspectors read them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class UnderWay:
    """What is under way in the thread that trains."""

    def __init__(self) -> None:
        self.is_inside = False
        """Whether a forward or a backward pass is under way: what is called in it is a part of it."""
        self.is_in_backward = False
        self.is_stepping = False
        """Whether a step without a closure is under way."""
        self.is_fetching = False
        """Whether a loader is making a batch."""
        self.is_copying = False
        """Whether watching makes a copy of the process; see `copying`."""
        self.forward_site = self.backward_site = 0
        """The user's lines of the last passes, looked up once for all."""
        self.loss: float | None = None
        """What the last backward pass began at, if that is one real number on the CPU."""
        self.thread = 0
        """The id of the one thread whose passes are observed; see `claim`."""
        self._owner: threading.Thread | None = None
        self._was_inside = False

    def begin_forward(self) -> None:
        """An outermost module runs."""
        self.is_inside = True

    def end_forward(self) -> None:
        """It has returned or raised."""
        self.is_inside = False

    def begin_backward(self) -> None:
        """A backward pass runs, maybe in a forward pass."""
        self._was_inside = self.is_inside
        self.is_in_backward = self.is_inside = True

    def end_backward(self) -> None:
        """It has ended."""
        self.is_in_backward = False
        self.is_inside = self._was_inside

    def begin_step(self, *, has_closure: bool) -> None:
        """An optimizer makes a step; with a closure passes are a part of it."""
        self.is_stepping = not has_closure

    def end_step(self) -> None:
        """The step is made."""
        self.is_stepping = False

    def begin_batch(self) -> None:
        """A loader makes a batch."""
        self.is_fetching = True

    def end_batch(self) -> None:
        """It hands it out."""
        self.is_fetching = False

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Fork in here without the script's being told."""
        self.is_copying = True
        try:
            yield
        finally:
            self.is_copying = False

    def claim(self, *, may_take_over: bool = False) -> bool:
        """Whether passes of this thread are observed from here on, though another one's may have been.

        Those of one thread are: what another one calls meanwhile is no part of its pass. It is the first that
        calls a model, until it ends, or until another one is the first to train.
        """
        is_free = self._owner is None or not self._owner.is_alive()
        if not is_free and (not may_take_over or self.is_inside):
            return False
        self._owner, self.thread = threading.current_thread(), threading.get_ident()
        return True
