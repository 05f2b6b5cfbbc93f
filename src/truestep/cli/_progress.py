"""The progress line: what a command is doing, how far it has come, and for how long it has been running.

Owns the last row of the terminal while a command runs. The script's output scrolls above that row, so it is
neither held up nor changed. Without a terminal it writes a line to the log, less often as time passes.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from truestep.errors import printable

_TERMINAL = 2
_TICK_S = 0.2
_FIRST_LINE_S = 30.0
_MAX_PAUSE_S = 600.0
_SLOWER = 1.2
"""By how much time must have passed since the last line of a log: after an hour they are 12 minutes apart."""
_MIN_ROWS = 5
_SURE_S = 3.0
"""For how long steps are timed before the time that is left is estimated."""
_MINUTE, _HOUR = 60, 3600


class Progress:
    """A line on standard error, from `with` to its end.

    Ctrl-C and SIGTERM raise KeyboardInterrupt meanwhile, so that the terminal is left as it was found.
    """

    def __init__(self, words: str, *, is_quiet: bool = False, log_after_s: float = _FIRST_LINE_S) -> None:
        self._words = words
        self._step: int | None = None
        self._num_steps: int | None = None
        self._first: tuple[int, float] | None = None
        self._num_findings = 0
        self._begun_s = time.monotonic()
        self._is_quiet = is_quiet
        self.is_live = not is_quiet and _has_rows()
        """Whether the line is on a terminal."""
        self._is_shown = False
        self._next_line_s = log_after_s
        self._lock = threading.RLock()  # a signal's handler may come while it is held
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="truestep-progress", daemon=True)
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if not self._is_quiet:
            self._install()
            self._draw()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # limits: Python calls it like this
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._erase()
        for number, (ours, before) in self._handlers.items():
            if signal.getsignal(number) == ours:
                signal.signal(number, before)

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
            self._draw()

    def _draw(self) -> None:
        elapsed_s = time.monotonic() - self._begun_s
        if not self.is_live:
            if elapsed_s >= self._next_line_s:
                pause_s = min(_MAX_PAUSE_S, max(_FIRST_LINE_S, elapsed_s * (_SLOWER - 1)))
                self._next_line_s = elapsed_s + pause_s
                print(f"truestep: {self.text} ({_clock(elapsed_s)})", file=sys.stderr, flush=True)
            return
        with self._lock:
            if self._is_over.is_set() or not _is_in_foreground():
                return
            columns, rows = os.get_terminal_size(_TERMINAL)
            line = f" {_clock(elapsed_s)}  {printable(self.text)}"[: columns - 1]
            # A line is made free at the first time: the cursor may be in the last row.
            room = "" if self._is_shown else "\n\x1b[A"
            self._is_shown = True
            # The rows above scroll. They are set each time, as the size of the terminal may have changed.
            _write(f"{room}\x1b7\x1b[1;{rows - 1}r\x1b[{rows};1H\x1b[0;7m\x1b[K{line}\x1b[K\x1b[0m\x1b8")

    def _erase(self) -> None:
        """Leave the terminal as it was found."""
        with self._lock:
            if self._is_shown:
                self._is_shown = False
                rows = os.get_terminal_size(_TERMINAL).lines
                _write(f"\x1b7\x1b[r\x1b[{rows};1H\x1b[0m\x1b[K\x1b8")

    def _install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        wanted = {signal.SIGTERM: self._interrupt}
        if self.is_live:
            wanted[signal.SIGTSTP] = self._suspend
        for number, handler in wanted.items():
            if signal.getsignal(number) is signal.SIG_DFL:
                self._handlers[number] = (handler, signal.signal(number, handler))

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def _suspend(self, _number: int, _frame: FrameType | None) -> None:
        """Ctrl-Z: give the last row back before the shell's prompt appears."""
        with self._lock:
            self._erase()
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, self._suspend)


def _has_rows() -> bool:
    """Whether standard error is a terminal of which some rows can be made to scroll alone."""
    try:
        if not os.isatty(_TERMINAL) or os.get_terminal_size(_TERMINAL).lines < _MIN_ROWS:
            return False
        import curses  # some builds of Python lack it
    except (ImportError, OSError, ValueError):
        return False
    try:
        curses.setupterm(fd=_TERMINAL)
    except curses.error:  # a terminal that nothing is known of
        return False
    return all(map(curses.tigetstr, ("csr", "sc", "rc"))) and not _is_in_notebook()


def _is_in_notebook() -> bool:
    """Whether a notebook has started this by `!`: it pretends to be a terminal and shows all as text."""
    try:
        return b"ipykernel" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    except OSError:
        return False


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(_TERMINAL) == os.getpgrp()
    except OSError:
        return True  # a terminal that controls no session, as some recorders have it


def _write(text: str) -> None:
    try:
        sys.stderr.flush()
        os.write(_TERMINAL, text.encode(errors="replace"))  # at once, between two of the script's
    except (AttributeError, OSError, ValueError):
        return  # who cannot be shown a line gets none


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
