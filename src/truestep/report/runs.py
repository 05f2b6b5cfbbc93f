"""A run's record read into facts: its processes' lives, what was measured at steps, what commands said.

Owns what lines mean together: which steps are void, what was killed. A line that makes no sense is kept
and shown, never an error: a record may be damaged or untrusted.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from truestep import record
from truestep.base import plainfile
from truestep.errors import UsageError
from truestep.record import number, step_number
from truestep.report.curve import Curve
from truestep.report.numerals import count
from truestep.report.thin import Floats, Series

_MAX_WHOLE = 2**53
_MAX_TIME_S = 1e11
_FORMER = ("histogram", "picture", "text", "tune")
"""Kinds of lines that 0.1 wrote: they are no damage, and nothing shows them any more."""


@dataclass(kw_only=True)
class Life:
    """One time that the run was started: from which step, on how many processes, how it ended."""

    cursor: int
    processes: int
    pids: list[int]
    host: str
    time_s: float
    facts: dict[str, Any]
    """The fields of its `start` line."""
    last_step: int
    """The number of steps finished when it was last heard of."""
    last_s: float
    """When its last line was written."""
    is_ended: bool = False
    """Whether its end was recorded. If not, it was killed or still runs."""
    is_stopped: bool = False
    """Whether it ended before the last step: Ctrl-C, SIGTERM, an error, or a `break`."""
    num_void: int = 0
    """Steps that were recorded and then done again by the next one."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something that happened at a step: a resume, a kill, a failed audit, and others by their kind."""

    step: int
    kind: str
    words: str
    time_s: float


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result of an evaluation after `cursor` steps."""

    name: str
    cursor: int
    value: Any


class Facts:
    """All that the lines of a record said so far. Steps are counted from 0, as in the record."""

    def __init__(self) -> None:
        self.losses = Curve()
        self.trained_s = Curve()
        """When each step ended, in seconds of training, without the pauses between lives."""
        self.ended_s = Curve()
        """When each step ended, in seconds since 1970."""
        self.wait_s = Curve()
        """For how many seconds steps had waited for their batch, where that is recorded."""
        self.rate = Curve()
        """Steps per second, at the last step of each line."""
        self.named: dict[str, Curve] = {}
        """What was logged by step, by name."""
        self.lives: list[Life] = []
        self.marks: list[Mark] = []
        self.evaluations: list[Evaluation] = []
        self.answers: dict[str, list[dict[str, Any]]] = {"check": [], "verify": []}
        """What these commands said, oldest first."""
        self.total: int | None = None
        """How many steps there are to be, if known."""
        self.num_snapshots, self.held_s = 0, 0.0
        self.snapshot_cursor: int | None = None
        self.last_s = 0.0
        """When the last line was written."""
        self.strange: list[str] = []
        """Lines that were read but make no sense, as they are."""
        self._base_s = self._end_s = 0.0
        self._takers: dict[str, Callable[[dict[str, Any]], None]] = {
            "start": self._start,
            "end": self._end,
            "phase": self._phase,
            "steps": self._add_steps,
            "values": self._add_values,
            "evaluate": self._evaluate,
            **dict.fromkeys(_FORMER, lambda _event: None),
            "snapshot": self._snapshot,
            "lineage": self._lineage,
            "unverified": self._unverified,
            "audit": self._audit,
            "damage": self._trouble,
            "save-failed": self._trouble,
            **dict.fromkeys(self.answers, self._answer),
        }

    def take(self, event: dict[str, Any]) -> None:
        """Take the next line."""
        kind = event["kind"]
        try:
            self._takers[kind](event)
            self.last_s = _time(event)
            if self.lives and kind not in self.answers:  # those are written by other commands
                self.lives[-1].last_s = max(self.lives[-1].last_s, self.last_s)
        except (KeyError, IndexError, TypeError, ValueError, ArithmeticError, AttributeError):
            self.strange.append(json.dumps(event))

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of the newest `start` line."""
        return self.lives[-1].facts if self.lives else {}

    @property
    def run_id(self) -> str:
        """By which the run is known to other tools."""
        return str(self.facts.get("run", ""))

    def last_answer(self, command: str) -> dict[str, Any] | None:
        """Return what a command said last."""
        return self.answers[command][-1] if self.answers[command] else None

    def _mark(self, kind: str, step: int, words: str, *, time_s: float) -> None:
        self.marks.append(Mark(kind=kind, step=step, words=words, time_s=time_s))

    def _start(self, event: dict[str, Any]) -> None:
        cursor, time_s = _whole(event["cursor"]), _time(event)
        pids = [_whole(pid) for pid in event.get("pids") or [event.get("pid", 0)]]
        life = Life(
            cursor=cursor,
            processes=_whole(event.get("processes", len(pids))),
            pids=pids,
            host=str(event.get("host", "")),
            time_s=time_s,
            facts={**event, "recipe": _dict(event, "recipe"), "fingerprint": _dict(event, "fingerprint")},
            last_step=cursor,
            last_s=time_s,
        )
        before = self.lives[-1] if self.lives else None
        num_void = self.losses.drop_from(cursor)
        for curve in (self.trained_s, self.ended_s, self.wait_s, self.rate, *self.named.values()):
            curve.drop_from(cursor)
        if before is not None:
            before.num_void = num_void
            self._mark_between(before, life)
        self.evaluations = [item for item in self.evaluations if item.cursor <= cursor]
        self._base_s, self._end_s = self._all_s, 0.0
        self.lives.append(life)

    @property
    def _all_s(self) -> float:
        """How long all steps took that count."""
        return self.trained_s.values[-1] if self.trained_s.values else 0.0

    def _mark_between(self, before: Life, life: Life) -> None:
        if not before.is_ended:
            again = f"; {count(before.num_void, 'step')} repeated" if before.num_void else ""
            words = f"killed after step {before.last_step:,}{again}"
            self._mark("kill", before.last_step, words, time_s=before.last_s)
        if life.cursor or before.last_step:
            self._mark("resume", life.cursor, f"resumed after step {life.cursor:,}", time_s=life.time_s)
        if life.processes != before.processes:
            words = f"resumed after step {life.cursor:,}, {before.processes} → {life.processes} processes"
            self._mark("processes", life.cursor, words, time_s=life.time_s)

    def _end(self, event: dict[str, Any]) -> None:
        if self.lives:
            life = self.lives[-1]
            life.is_ended = True
            if self.total is not None and life.last_step < self.total:
                life.is_stopped = True
                words = f"stopped after step {life.last_step:,}"
                self._mark("stop", life.last_step, words, time_s=_time(event))

    def _phase(self, event: dict[str, Any]) -> None:
        self.total = None if event["end"] is None else _whole(event["end"])
        self._base_s, self._end_s = self._base_s + self._end_s, 0.0  # a loop counts from its own start

    def _add_steps(self, event: dict[str, Any]) -> None:
        first, time_s = _whole(event["first"]), _time(event)
        losses = list(map(number, event["loss"]))
        ends_s = [number(end) / 1e6 for end in event["end_us"]]
        waits = [number(wait) / 1e6 for wait in event.get("wait_us", ())]
        steps = range(first, first + len(losses))
        if not losses or len(ends_s) != len(losses) or ("wait_us" in event and len(waits) != len(losses)):
            raise ValueError("no steps")
        if ends_s[0] < self._end_s:  # a second loop in a record without phases
            self._base_s += self._end_s
        self._end_s = ends_s[-1]
        self.losses.extend(steps, losses)
        self.trained_s.extend(steps, [self._base_s + end_s for end_s in ends_s])
        self.ended_s.extend(steps, [time_s - (ends_s[-1] - end_s) for end_s in ends_s])
        if waits:
            self.wait_s.extend(steps, waits)
        self._add_rate(steps)
        if self.lives:
            self.lives[-1].last_step = steps.stop

    def _add_rate(self, steps: range) -> None:
        num, began_s = len(steps), self.ended_s.at(steps.start - 1)
        if began_s is None or steps.start <= (self.lives[-1].cursor if self.lives else 0):
            num, began_s = num - 1, self.ended_s.at(steps.start)
        seconds = self.ended_s.values[-1] - (began_s or 0.0)
        if num and seconds > 0:
            self.rate.add(steps[-1], num / seconds)

    def _add_values(self, event: dict[str, Any]) -> None:
        name, steps = event["name"], list(map(_whole, event["steps"]))
        values = list(map(number, event["values"]))
        if not isinstance(name, str) or len(values) != len(steps):
            raise ValueError("values")
        curve = self.named.setdefault(name, Curve())
        for step, value in zip(steps, values, strict=True):
            curve.add(step, value)

    def _evaluate(self, event: dict[str, Any]) -> None:
        name, cursor = str(event["name"]), _whole(event["cursor"])
        self.evaluations.append(Evaluation(name=name, cursor=cursor, value=event["value"]))

    def _snapshot(self, event: dict[str, Any]) -> None:
        self.snapshot_cursor = _whole(event["cursor"])
        self.num_snapshots += 1
        self.held_s += number(event["held_s"])

    def _lineage(self, event: dict[str, Any]) -> None:
        step = _whole(event["step"])
        change = f"{event['field']} differed: {event['then']} → {event['now']}"
        words = f"resumed after step {step:,} although {change}"
        self._mark("lineage", step, words, time_s=_time(event))

    def _unverified(self, event: dict[str, Any]) -> None:
        cursor = _whole(event["cursor"])
        words = f"resumed after step {cursor:,} from a snapshot without a witness"
        self._mark("unverified", cursor, words, time_s=_time(event))

    def _audit(self, event: dict[str, Any]) -> None:
        step = step_number(_whole(event["step"]))
        ranks = ", ".join(str(_whole(rank)) for rank in event["ranks"])
        words = f"an audit failed at step {step:,}, rank {ranks}: {event['what']}"
        self._mark("audit", step, words, time_s=_time(event))

    def _trouble(self, event: dict[str, Any]) -> None:
        step = self.lives[-1].last_step if self.lives else 0
        damaged = f"snapshot {event['path']} is damaged: " if event["kind"] == "damage" else ""
        words = f"{damaged or 'a snapshot could not be written: '}{event['reason']}"
        self._mark(event["kind"], step, words, time_s=_time(event))

    def _answer(self, event: dict[str, Any]) -> None:
        _time(event)
        self.answers[event["kind"]].append(event)


class Story(Facts):
    """All that the record of one run says, with steps counted from 1."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.name = folder.resolve().name or str(folder)
        self.folder = folder
        self.num_torn = 0

    @cached_property
    def loss(self) -> Series:
        """The loss of each step."""
        return _counted(self.losses)

    @cached_property
    def seconds(self) -> Floats:
        """When each step of `loss` ended, in seconds of training."""
        return self.trained_s.series.values

    @cached_property
    def waits(self) -> Floats:
        """For how many seconds each step of `loss` had waited for its batch; NaN where that is not known."""
        waited = np.full(len(self.loss), np.nan)
        known = self.wait_s.series
        waited[np.searchsorted(self.loss.steps, known.steps + 1)] = known.values
        return waited

    @cached_property
    def values(self) -> dict[str, Series]:
        """What was logged, by name."""
        return {name: _counted(curve) for name, curve in self.named.items()}

    @property
    def num_steps(self) -> int:
        """The number of the last recorded step, counted from 1."""
        return step_number(self.losses.steps[-1]) if self.losses else 0

    def count(self, kind: str) -> int:
        """How often something happened."""
        return sum(mark.kind == kind for mark in self.marks)


def _counted(curve: Curve) -> Series:
    """Return a curve whose steps are counted from 1."""
    series = curve.series
    return Series(steps=series.steps.astype(np.int64) + 1, values=series.values)


def read_run(folder: Path) -> Story:
    """Read the record in a run's folder."""
    path = folder / "record.jsonl"
    if not plainfile.is_there(path):
        raise UsageError(
            f"{folder} has no record.jsonl. Pass the folder of a run: that of truestep.Run, or of --record."
        )
    story = Story(folder)
    num_events = 0
    for event in record.read(path):
        num_events += 1
        story.take(event)
    story.num_torn = max(0, _num_lines(path) - num_events)
    return story


def _num_lines(path: Path) -> int:
    num, last = 0, b"\n"
    with record.opened(path) as file:
        while block := file.read(1 << 20):
            num, last = num + block.count(b"\n"), block[-1:]
    return num + (last != b"\n")


def _whole(value: Any) -> int:
    """A count, or an error: one that a browser could not hold exactly is none."""
    if value.__class__ is not int or not 0 <= value < _MAX_WHOLE:
        raise ValueError(value)
    return int(value)


def _time(event: dict[str, Any]) -> float:
    """When a line was written, in seconds since 1970, or an error: what no calendar knows is none."""
    seconds = number(event["time_s"])
    if not 0 <= seconds <= _MAX_TIME_S:
        raise ValueError(seconds)
    return seconds


def _dict(event: dict[str, Any], name: str) -> dict[str, Any]:
    found = event.get(name, {})
    return found if isinstance(found, dict) else {name: found}
