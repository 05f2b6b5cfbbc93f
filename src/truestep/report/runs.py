"""A run's folder read into a story: its processes' lives, what was measured at steps, what commands said.

Owns what lines mean together: which steps are void, what was killed. A line that makes no sense is kept
and shown, never an error: a record may be damaged or untrusted.
"""

import json
import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from truestep import plainfile, record
from truestep.errors import UsageError
from truestep.record import number, step_number
from truestep.report.exhibits import MAX_CURSOR, Exhibits
from truestep.report.thin import Floats, Series


@dataclass(kw_only=True)
class Life:
    """One time that the run was started: from which step, on how many processes, how it ended."""

    cursor: int
    processes: int
    time_s: float
    facts: dict[str, Any]
    """The fields of its `start` line."""
    last_step: int
    is_ended: bool = False
    """Whether its end was recorded. If not, it was killed or still runs."""
    is_stopped: bool = False
    """Whether it ended before the last step: Ctrl-C, SIGTERM, an error, or a `break`."""
    num_void: int = 0
    """Steps that were recorded and then done again by the next one, and how long they took."""
    void_s: float = 0.0
    loop_s: float | None = None
    """When its first loop over steps was opened, and when its last line was written."""
    last_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something that happened at a step: resume, kill, stop, processes, lineage, damage or save-failed."""

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


@dataclass(kw_only=True)
class Story:
    """All that the record of one run says, steps once each and counted from 1."""

    name: str
    folder: Path
    lives: list[Life] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    loss: Series
    seconds: Floats
    """When each step of `loss` ended, in seconds of training, without the pauses between lives."""
    waits: Floats
    """For how many seconds each step of `loss` had waited for its batch; NaN where that is not known."""
    values: dict[str, Series]
    evaluations: list[Evaluation]
    exhibits: Exhibits = field(default_factory=Exhibits)
    """What the script showed: distributions, pictures, texts."""
    answers: dict[str, list[dict[str, Any]]]
    """What `check`, `verify` and `tune` said, oldest first."""
    total: int | None
    """How many steps there are to be, if known."""
    num_snapshots: int
    held_s: float
    strange: list[str]
    """Lines that were read but make no sense, as they are."""
    num_torn: int

    @property
    def num_steps(self) -> int:
        """The number of the last recorded step, counted from 1."""
        return int(self.loss.steps[-1]) if len(self.loss) else 0

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of the newest `start` line."""
        return self.lives[-1].facts if self.lives else {}

    def count(self, kind: str) -> int:
        """How often something happened."""
        return sum(mark.kind == kind for mark in self.marks)


def read_run(folder: Path) -> Story:
    """Read the record in a run's folder."""
    path = folder / "record.jsonl"
    if not plainfile.is_there(path):
        raise UsageError(
            f"{folder} has no record.jsonl. Pass the folder of a run: that of truestep.Run, or of --record."
        )
    reader = _Reader()
    num_events = 0
    for event in record.read(path):
        num_events += 1
        reader.take(event)
    return reader.finish(folder, num_torn=max(0, _num_lines(path) - num_events))


def _num_lines(path: Path) -> int:
    num, last = 0, b"\n"
    with record.opened(path) as file:
        while block := file.read(1 << 20):
            num, last = num + block.count(b"\n"), block[-1:]
    return num + (last != b"\n")


def _numbers(values: list[Any]) -> "array[float]":
    try:
        return array("d", values)
    except TypeError:
        return array("d", map(number, values))


class _Column:
    """Rows of numbers by step, in the order of steps: what is recorded again replaces what was there."""

    def __init__(self, num_columns: int) -> None:
        self.steps = array("q")
        self.columns = [array("d") for _ in range(num_columns)]

    def cut(self, step: int) -> int:
        """Drop everything from a step on; return how many rows that were."""
        if not self.steps or self.steps[-1] < step:
            return 0
        index = bisect_left(self.steps, step)
        num = len(self.steps) - index
        del self.steps[index:]
        for column in self.columns:
            del column[index:]
        return num

    def add(self, steps: Iterable[int], *columns: "array[float]") -> None:
        new = array("q", steps)
        if not new:
            return
        if any(len(column) != len(new) for column in columns):
            raise ValueError("columns of different lengths")
        self.cut(new[0])
        self.steps.extend(new)
        for column, values in zip(self.columns, columns, strict=True):
            column.extend(values)

    def add_one(self, step: int, *values: float) -> None:
        """As `add` for a single row, which is what a run of slow steps writes."""
        if step.__class__ is not int:
            raise TypeError("steps are whole numbers")
        if self.steps and step <= self.steps[-1]:
            self.cut(step)
        self.steps.append(step)
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)

    def series(self, column: int = 0) -> Series:
        steps = np.array(self.steps, dtype=np.int64)
        values = np.array(self.columns[column], dtype=np.float64)
        if len(steps) > 1 and (steps[1:] < steps[:-1]).any():
            order = np.argsort(steps, kind="stable")
            steps, values = steps[order], values[order]
        return Series(steps=steps, values=values)


_LOSS, _SECONDS, _WAIT = range(3)


class _Reader:
    """Takes lines one after the other."""

    def __init__(self) -> None:
        self._steps = _Column(3)
        self._values: dict[str, _Column] = {}
        self._lives: list[Life] = []
        self._marks: list[Mark] = []
        self._evaluations: list[Evaluation] = []
        self._exhibits = Exhibits()
        self._answers: dict[str, list[dict[str, Any]]] = {"check": [], "verify": [], "tune": []}
        self._strange: list[str] = []
        self._total: int | None = None
        self._base_s = self._end_s = 0.0
        self._num_snapshots, self._held_s = 0, 0.0
        self._takers: dict[str, Callable[[dict[str, Any]], None]] = {
            "start": self._start,
            "end": self._end,
            "phase": self._phase,
            "steps": self._add_steps,
            "values": self._add_values,
            "evaluate": self._evaluate,
            "histogram": self._exhibits.take,
            "picture": self._exhibits.take,
            "text": self._exhibits.take,
            "snapshot": self._snapshot,
            "lineage": self._lineage,
            "damage": self._trouble,
            "save-failed": self._trouble,
            "check": self._answer,
            "verify": self._answer,
            "tune": self._answer,
        }

    def take(self, event: dict[str, Any]) -> None:
        taker = self._takers.get(event["kind"])
        try:
            if taker is None:
                raise KeyError(event["kind"])
            taker(event)
            if self._lives and event["kind"] not in self._answers:  # those are written by other commands
                self._lives[-1].last_s = max(self._lives[-1].last_s, number(event["time_s"]))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            self._strange.append(json.dumps(event))

    def finish(self, folder: Path, *, num_torn: int) -> Story:
        seconds, waits = (self._steps.series(column).values for column in (_SECONDS, _WAIT))
        return Story(
            name=folder.resolve().name or str(folder),
            folder=folder,
            lives=self._lives,
            marks=self._marks,
            loss=self._steps.series(_LOSS),
            seconds=seconds,
            waits=waits,
            values={name: column.series() for name, column in self._values.items()},
            evaluations=self._evaluations,
            exhibits=self._exhibits,
            answers=self._answers,
            total=self._total,
            num_snapshots=self._num_snapshots,
            held_s=self._held_s,
            strange=self._strange,
            num_torn=num_torn,
        )

    def _mark(self, kind: str, step: int, words: str, event: dict[str, Any]) -> None:
        self._marks.append(Mark(kind=kind, step=step, words=words, time_s=number(event["time_s"])))

    def _start(self, event: dict[str, Any]) -> None:
        cursor, processes = int(event["cursor"]), int(event.get("processes", 1))
        facts = {**event, "recipe": _dict(event, "recipe"), "fingerprint": _dict(event, "fingerprint")}
        life = Life(
            cursor=cursor, processes=processes, time_s=number(event["time_s"]), facts=facts, last_step=cursor
        )
        before = self._lives[-1] if self._lives else None
        if before is not None:
            whole_s = self._trained_s
            before.num_void = self._steps.cut(step_number(cursor))
            before.void_s = whole_s - self._trained_s
            self._mark_between(before, life, event)
        for column in self._values.values():
            column.cut(step_number(cursor))
        self._evaluations = [item for item in self._evaluations if item.cursor <= cursor]
        self._exhibits.cut(cursor)
        self._base_s, self._end_s = self._trained_s, 0.0
        self._lives.append(life)

    @property
    def _trained_s(self) -> float:
        """How long all steps took that count."""
        return self._steps.columns[_SECONDS][-1] if self._steps.steps else 0.0

    def _mark_between(self, before: Life, life: Life, event: dict[str, Any]) -> None:
        if not before.is_ended:
            again = f"; {before.num_void:,} steps were repeated" if before.num_void else ""
            self._mark("kill", before.last_step, f"killed after step {before.last_step:,}{again}", event)
        if life.cursor or before.last_step:
            self._mark("resume", life.cursor, f"resumed after step {life.cursor:,}", event)
        if life.processes != before.processes:
            words = f"{before.processes} → {life.processes} processes after step {life.cursor:,}"
            self._mark("processes", life.cursor, words, event)

    def _end(self, event: dict[str, Any]) -> None:
        if self._lives:
            life = self._lives[-1]
            life.is_ended = True
            if self._total is not None and life.last_step < self._total:
                life.is_stopped = True
                self._mark("stop", life.last_step, f"stopped after step {life.last_step:,}", event)

    def _phase(self, event: dict[str, Any]) -> None:
        self._total = None if event["end"] is None else int(event["end"])
        self._base_s, self._end_s = self._base_s + self._end_s, 0.0  # a loop counts from its own start
        if self._lives and self._lives[-1].loop_s is None:
            self._lives[-1].loop_s = number(event["time_s"])

    def _add_steps(self, event: dict[str, Any]) -> None:
        losses, ends_us, first = event["loss"], event["end_us"], step_number(event["first"])
        num = len(losses)
        waits_us = event["wait_us"] if "wait_us" in event else [math.nan] * num
        if not num or not num == len(ends_us) == len(waits_us) or first < 1:
            raise ValueError("no steps")
        begun_s = number(ends_us[0]) / 1e6
        if begun_s < self._end_s:  # a second loop in a record without phases
            self._base_s += self._end_s
        if num == 1:
            self._steps.add_one(first, number(losses[0]), self._base_s + begun_s, number(waits_us[0]) / 1e6)
        else:
            seconds = array("d", [self._base_s + end / 1e6 for end in ends_us])
            waits = array("d", [wait / 1e6 for wait in waits_us])
            self._steps.add(range(first, first + num), _numbers(losses), seconds, waits)
        self._end_s = number(ends_us[-1]) / 1e6
        if self._lives:
            self._lives[-1].last_step = first + num - 1

    def _add_values(self, event: dict[str, Any]) -> None:
        name, values = event["name"], event["values"]
        steps = list(map(step_number, event["steps"]))
        if not isinstance(name, str) or len(values) != len(steps):
            raise ValueError("values")
        column = self._values.get(name) or _Column(1)
        if len(steps) == 1:
            column.add_one(steps[0], number(values[0]))
        else:
            column.add(steps, _numbers(values))
        self._values[name] = column

    def _evaluate(self, event: dict[str, Any]) -> None:
        cursor = int(event["cursor"])
        if not 0 <= cursor < MAX_CURSOR:
            raise ValueError("cursor")
        self._evaluations.append(Evaluation(name=str(event["name"]), cursor=cursor, value=event["value"]))

    def _snapshot(self, event: dict[str, Any]) -> None:
        self._held_s += number(event["held_s"])
        self._num_snapshots += 1

    def _lineage(self, event: dict[str, Any]) -> None:
        step = int(event["step"])
        change = f"{event['field']} differed: {event['then']} → {event['now']}"
        words = f"resumed after step {step:,} although {change}"
        self._mark("lineage", step, words, event)

    def _trouble(self, event: dict[str, Any]) -> None:
        step = self._lives[-1].last_step if self._lives else 0
        path = f"{event['path']}: " if "path" in event else ""
        self._mark(event["kind"], step, f"{path}{event['reason']}", event)

    def _answer(self, event: dict[str, Any]) -> None:
        self._answers[event["kind"]].append(event)


def _dict(event: dict[str, Any], name: str) -> dict[str, Any]:
    found = event.get(name, {})
    return found if isinstance(found, dict) else {name: found}
