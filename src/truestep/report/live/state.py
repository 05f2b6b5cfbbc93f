"""A run's folder as it stands now: its record followed, and whether its processes still run.

Owns what is known only while a run lasts. What the record's lines mean is in `runs`.
"""

import time
from pathlib import Path
from typing import Literal

from truestep.record import step_number
from truestep.report.curve import Curve
from truestep.report.live.follow import Follower, are_alive
from truestep.report.runs import Facts, Life, Mark

Status = Literal["waiting", "running", "done", "stopped", "killed", "unknown"]

_RATE_STEPS = 200
"""The rate is taken over at most this many of the last steps."""
_RATE_S = 15.0
"""And over at most this time, so that it is current."""
_OWN = ("loss", "steps_per_s", "data_wait_s", "time_s", "step")
"""Names of curves and columns that the script did not choose."""


class Live:
    """The current state of a run. `poll` updates it; a run that has not begun is empty."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._follower = Follower(self.folder / "record.jsonl")
        self.facts = Facts()
        """What the record says."""
        self.version = 0
        """How many times the record has grown."""
        self.alive: list[bool | None] = []
        """Of the processes of the last start, by rank, whether they run; None: on another machine."""

    def poll(self) -> None:
        """Read what is new."""
        events, is_void = self._follower.look()
        if is_void:
            self.facts = Facts()
        for event in events:
            self.facts.take(event)
        self.version += is_void or bool(events)
        self.alive = are_alive(self.lives[-1]) if self.lives else []

    @property
    def status(self) -> Status:
        """The state: waiting, running, done, stopped before its end, or killed."""
        if not self.lives:
            return "waiting"
        if self.lives[-1].is_ended:
            return "done" if self.end is not None and self.cursor >= self.end else "stopped"
        if not self.alive or None in self.alive:
            return "unknown"
        return "running" if self.alive[0] else "killed"

    @property
    def cursor(self) -> int:
        """The number of finished steps, as far as recorded."""
        if self.facts.losses:
            return step_number(self.facts.losses.steps[-1])
        return self.lives[-1].cursor if self.lives else 0

    @property
    def end(self) -> int | None:
        """At how many steps it is done, if that is known."""
        return self.facts.total

    @property
    def lives(self) -> list[Life]:
        """Every start of the run, the first one first."""
        return self.facts.lives

    @property
    def curves(self) -> dict[str, Curve]:
        """Every value by step, the loss first, then by name; the throughput is last."""
        facts = self.facts
        # A script may call something of its own "loss" too: that one is another curve.
        named = {f"{name} (logged)" if name in _OWN else name: curve for name, curve in facts.named.items()}
        named["data_wait_s"] = facts.wait_s
        curves = {"loss": facts.losses, **dict(sorted(named.items())), "steps_per_s": facts.rate}
        return {name: curve for name, curve in curves.items() if len(curve)}

    @property
    def num_unread(self) -> int:
        """Lines of the record that could not be read: torn, or not as they should be."""
        return self._follower.num_unread + len(self.facts.strange)

    def rate(self) -> float | None:
        """Return the steps per second of late, if it runs and there are enough of them."""
        ended_s = self.facts.ended_s
        if not self.lives or len(ended_s) < 2:
            return None
        first = max(len(ended_s) - 1 - _RATE_STEPS, 0)
        while first < len(ended_s) - 2 and (
            ended_s.steps[first] < self.lives[-1].cursor
            or ended_s.values[-1] - ended_s.values[first] > _RATE_S
        ):
            first += 1
        seconds = ended_s.values[-1] - ended_s.values[first]
        return (len(ended_s) - 1 - first) / seconds if seconds > 0 else None

    def left_s(self) -> float | None:
        """Return the seconds left, if it runs and they can be estimated."""
        rate = self.rate()
        if self.status not in ("running", "unknown") or self.end is None or not rate:
            return None
        return max(self.end - self.cursor, 0) / rate

    def wait_share(self) -> float | None:
        """Return the share of time that the last steps spent waiting for data."""
        waits, rate = self.facts.wait_s, self.rate()
        if not waits or rate is None:
            return None
        last = waits.values[-_RATE_STEPS:]
        return min(sum(last) / len(last) * rate, 1.0)

    def silent_s(self) -> float:
        """Return for how many seconds nothing was recorded."""
        return max(time.time() - self.facts.last_s, 0.0) if self.facts.last_s else 0.0

    def marks(self) -> list[Mark]:
        """Return what happened, in the order of time, each restart once; and a kill with no restart yet."""
        moved = {mark.time_s for mark in self.facts.marks if mark.kind == "processes"}
        marks = [mark for mark in self.facts.marks if mark.kind != "resume" or mark.time_s not in moved]
        if self.status == "killed":
            last = self.lives[-1]
            words = f"killed after step {last.last_step:,}"
            marks.append(Mark(step=last.last_step, kind="kill", words=words, time_s=last.last_s))
        return sorted(marks, key=lambda mark: mark.time_s)
