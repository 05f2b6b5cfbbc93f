"""The progress of a command: what it is doing, how far it has come, and for how long it has been running.

Owns lines on standard error, less often as time passes. The script's output is neither held up nor changed.
"""

import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Self

from truestep.errors import printable

_TICK_S = 0.2
_FIRST_LINE_S, _FIRST_ON_TERMINAL_S = 30.0, 5.0
_MAX_PAUSE_S = 600.0
_SLOWER = 1.2
"""By how much time must have passed since the last line: after an hour they are 12 minutes apart."""
_SURE_S = 3.0
"""For how long steps are timed before the time that is left is estimated."""
_MINUTE, _HOUR = 60, 3600


class Progress:
    """Lines on standard error, from `with` to its end. SIGTERM raises KeyboardInterrupt meanwhile."""

    def __init__(self, words: str, *, is_quiet: bool = False, first_line_s: float | None = None) -> None:
        self._words = words
        self._step: int | None = None
        self._num_steps: int | None = None
        self._first: tuple[int, float] | None = None
        self._num_findings = 0
        self._begun_s = time.monotonic()
        self._is_quiet = is_quiet
        self._least_pause_s = _FIRST_ON_TERMINAL_S if sys.stderr.isatty() else _FIRST_LINE_S
        self._next_line_s = self._least_pause_s if first_line_s is None else first_line_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="truestep-progress", daemon=True)
        self._has_handler = False

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and not self._is_quiet and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._interrupt)
            self._has_handler = True
        if not self._is_quiet:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # limits: Python calls it like this
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._has_handler and signal.getsignal(signal.SIGTERM) == self._interrupt:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @staticmethod
    def _interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def status(self, words: str) -> None:
        """Show what is done now; steps are counted again from there."""
        self._words = words
        self._step = self._first = None

    def count(self, step: int, num_steps: int | None = None) -> None:
        """Show how many steps were made, and of how many if that is known."""
        if step and (self._first is None or step < self._first[0]):
            self._first = (step, time.monotonic())
        self._step, self._num_steps = step, num_steps

    def found(self, num: int) -> None:
        """Show how many findings there are."""
        self._num_findings = num

    @property
    def text(self) -> str:
        """What the line says, without the time."""
        parts = [self._words]
        if self._step:
            of = f" of {self._num_steps}" if self._num_steps is not None else ""
            parts.append(f"step {self._step}{of}")
        if self._num_findings:
            parts.append(f"{self._num_findings} finding{'s' * (self._num_findings != 1)} so far")
        left_s = self._left_s()
        if left_s is not None:
            parts.append(f"about {_duration(left_s)} left")
        return ", ".join(parts)

    def _left_s(self) -> float | None:
        """Return how long the remaining steps take at the speed so far; None before that is known."""
        if self._num_steps is None or self._first is None or not self._step:
            return None
        num_timed, took_s = self._step - self._first[0], time.monotonic() - self._first[1]
        if num_timed < 1 or took_s < _SURE_S:
            return None
        return max(0, self._num_steps - self._step) * took_s / num_timed

    def _run(self) -> None:
        while not self._is_over.wait(_TICK_S):
            self._print_if_due()

    def _print_if_due(self) -> None:
        elapsed_s = time.monotonic() - self._begun_s
        if elapsed_s >= self._next_line_s:
            self._next_line_s = elapsed_s + min(
                _MAX_PAUSE_S, max(self._least_pause_s, elapsed_s * (_SLOWER - 1))
            )
            print(f"truestep: {printable(self.text)} ({_clock(elapsed_s)})", file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = whole // _HOUR, whole // _MINUTE % _MINUTE
    return f"{hours}:{minutes:02}:{whole % _MINUTE:02}" if hours else f"{minutes}:{whole % _MINUTE:02}"


def _duration(seconds: float) -> str:
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:.0f} h"
