"""Ctrl-C and SIGTERM: remembered, so that the loop can stop at the next step."""

import signal
import threading
import time
from types import FrameType
from typing import Any

_ONE_WISH_S = 1.0
"""Signals that follow each other faster are one: a launcher and a job manager may both pass it on."""


class Interrupt:
    """While installed, the first SIGINT or SIGTERM is only remembered; one that comes later acts as usual."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._received_s = 0.0
        self._former: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        """Take over the two signals. Outside of the main thread signals cannot be handled: do nothing."""
        if threading.current_thread() is threading.main_thread() and not self._former:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former[number] = signal.signal(number, self._remember)

    def take(self, number: signal.Signals) -> None:
        """Remember a signal, also one that another process of the run was sent."""
        if self.received is None:
            self.received = number
            self._received_s = time.monotonic()

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.take(signal.Signals(number))
        elif time.monotonic() - self._received_s > _ONE_WISH_S:
            self.received = None
            self.remove()
            signal.raise_signal(number)

    def remove(self) -> None:
        """Give the signals back to whoever handled them before."""
        while self._former:
            number, handler = self._former.popitem()
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
