"""A script in a process of its own that takes turns with others: it runs a few steps, then stands still.

Owns the process, its working folder and the parent's side of the channel (`inside` has the other). Between
its turns the process and its loader workers are stopped, so that they take nothing from whoever's turn it is.
"""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from truestep import watch
from truestep.errors import UsageError
from truestep.tune.knob import Knob
from truestep.watch.launch.scratch import Scratch, tail_of

_TURNS = "truestep.tune.in_script.inside:take_turns"
_STEADY = "truestep.tune.in_script.turning:allocator"
_RESEED = "truestep.tune.in_script.reseed:reseed"
_GRACE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What a turn gave: for each of its steps how long it took, and its loss."""

    seconds: list[float]
    losses: list[float | None]
    peak_bytes: int
    facts: dict[str, Any] = field(default_factory=dict)


class Contender:
    """One script with some settings. `advance` lets it run; it has ended when that returns None.

    With `is_steady` it keeps the memory that it frees: how much of it goes back and forth is luck otherwise,
    and two processes that do the very same can differ by a fifth.
    """

    def __init__(
        self,
        script: watch.Script,
        settings: Mapping[str, Any],
        *,
        knobs: Mapping[str, Knob],
        is_steady: bool = False,
        seed_offset: int = 0,
        num_first: int = 1,
    ) -> None:
        self.settings = dict(settings)
        self._script, self._seed_offset = script, seed_offset
        self._knobs, self._num_first, self._is_steady = knobs, num_first, is_steady
        self._scratch = Scratch(Path.cwd())
        self.facts: dict[str, Any] = {}
        self.num_steps = 0
        self.peak_bytes = 0
        self.seconds: list[float] = []
        self.losses: list[float | None] = []
        self.code: int | None = None
        self._process: subprocess.Popen[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # limits: Python calls it like this
        self.stop()
        self._scratch.__exit__(kind, error, trace)

    def start(self) -> None:
        """Start the process, from the script's beginning. Its first turn has `num_first` steps."""
        ours, theirs = socket.socketpair()
        self._scratch.renew()
        self._folder = self._scratch.new_folder()
        with self._log.open("wb") as log:
            self._process = watch.start(
                self._script,
                plan=self._plan(theirs.fileno()),
                folder=self._folder,
                scratch=self._scratch,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # a group of its own: workers are stopped and ended with it
            )
        theirs.close()
        self._channel, self._pending = ours, b""
        self.code = None
        self.num_steps, self.losses, self.seconds = 0, [], []

    def _plan(self, channel: int) -> watch.Plan:
        fields: dict[str, Any] = {}
        settings: list[tuple[str, Any]] = [(_TURNS, {"channel": channel, "steps": self._num_first})]
        if self._is_steady:
            settings.append((_STEADY, "keep"))
        if self._seed_offset:
            settings.append((_RESEED, self._seed_offset))
        for name, value in self.settings.items():
            knob = self._knobs[name]
            if knob.plan is not None:
                fields.update(knob.plan(value))
            else:
                settings.append((knob.turned_by, value))
        return watch.Plan(**fields, settings=tuple(settings))

    def first(self, *, until_s: float) -> Turn | None:
        """Wait for the end of the first turn, to a point of `time.monotonic`; None if there was none."""
        return self._receive(until_s)

    def advance(self, num_steps: int, *, until_s: float) -> Turn | None:
        """Run so many steps; None if the script has ended before, or time is up."""
        if self.code is not None or self._process is None:
            return None
        self._signal(signal.SIGCONT)
        try:
            self._channel.sendall(f"go {num_steps}\n".encode())
        except OSError:
            self._await_end()
            return None
        turn = self._receive(until_s)
        return None if turn is None or len(turn.seconds) < num_steps else turn

    def _receive(self, until_s: float) -> Turn | None:
        while b"\n" not in self._pending:
            left = until_s - time.monotonic()
            try:
                self._channel.settimeout(max(left, 0.0))
                data = self._channel.recv(1 << 16)
            except (TimeoutError, BlockingIOError):  # the second: no time was left
                self.stop()
                return None
            except ConnectionResetError:
                data = b""
            if not data:
                self._await_end()
                return None
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        message = json.loads(line)
        if message["kind"] == "turn":
            self._signal(signal.SIGSTOP)
        ends = [0, *message["ends_ns"]]
        turn = Turn(
            seconds=[(end - begun) / 1e9 for begun, end in pairwise(ends)],
            losses=message["losses"],
            peak_bytes=message["peak_bytes"],
            facts=message.get("facts", {}),
        )
        self.num_steps += len(turn.seconds)
        self.losses += turn.losses
        self.seconds += turn.seconds
        self.peak_bytes = max(self.peak_bytes, turn.peak_bytes)
        self.facts.update(turn.facts)
        if message["kind"] == "end":
            self._await_end(has_failed=message["has_failed"])
            return None
        return turn

    def _await_end(self, *, has_failed: bool = True) -> None:
        """The script has ended, or is about to: wait for it. To be slow to go is no failure."""
        if self._process is not None:
            try:
                self.code = self._process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self.code = None if has_failed else 0
                self.stop()

    def leave(self) -> watch.Process | None:
        """End the script at its next step, and return what was observed of it."""
        self._channel.close()
        self._signal(signal.SIGCONT)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        self.stop()
        return next((item for item in watch.read(self._folder) if item.num_steps), None)

    @property
    def error(self) -> UsageError:
        """Why the script cannot be measured, once it has ended."""
        if self.code != 0:
            return UsageError(f"the script failed before it could be measured:\n{self.tail}")
        return UsageError(
            f"the script ended after {self.num_steps} optimizer steps, too few to measure. "
            "Let it train longer, for example with more epochs."
        )

    @property
    def _log(self) -> Path:
        return self._folder / "output.txt"

    @property
    def tail(self) -> str:
        """The last lines of what the script printed."""
        return tail_of(self._log)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def stop(self) -> None:
        """End the process and its workers."""
        if self._process is None:
            return
        self._channel.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        self.code = code if self.code is None else self.code
        self._process = None
