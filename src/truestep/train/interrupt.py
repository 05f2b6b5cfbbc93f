"""Ctrl-C and SIGTERM: remembered, so that the loop can stop at the next step."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """While installed, the first SIGINT or SIGTERM is only remembered; the second acts as usual."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._former: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        """Take over the two signals. Outside of the main thread signals cannot be handled: do nothing."""
        if threading.current_thread() is threading.main_thread() and not self._former:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former[number] = signal.signal(number, self._remember)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self.remove()

    def remove(self) -> None:
        """Give the signals back to whoever handled them before."""
        while self._former:
            number, handler = self._former.popitem()
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
