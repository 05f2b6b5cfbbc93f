"""What a run's folder says now: the record's events folded into curves, lives, findings and marks.

Owns the meaning of events for those who look while it grows. Drawing is left to `screen` and `serve`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from truestep.record import step_number
from truestep.report.live.curve import Curve
from truestep.report.live.follow import Follower
from truestep.report.live.pulse import are_alive

Status = Literal["waiting", "running", "done", "stopped", "killed", "unknown"]

_RATE_STEPS = 200
"""The rate is told over the last so many steps."""
_RATE_S = 15.0
"""And over at most so long, so that it is today's."""
_MAX_WHOLE = 2**53
_MAX_TIME_S = 1e11
_OWN = ("loss", "steps_per_s", "data_wait_s", "time_s", "step")
"""Names of curves and columns that are not the script's."""
_HELD = ("learning_rate", "memory_bytes")
"""Beginnings of names whose value holds until the next one is recorded."""


@dataclass(kw_only=True)
class Session:
    """One start of the run's processes, to their end."""

    pids: list[int]
    host: str
    num_processes: int
    cursor: int
    """The step at which it began."""
    started_s: float
    last_step: int
    """The number of steps finished when it was last heard of."""
    last_s: float = 0.0
    """When it was last heard of."""
    has_ended: bool = False
    """Whether it ended by itself; what is killed does not say so."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something that happened at a step."""

    step: int
    kind: Literal["killed", "stopped", "resumed", "processes", "lineage", "damage", "save-failed"]
    text: str
    time_s: float


@dataclass(kw_only=True)
class _Facts:
    """All that the events said; a fresh one is a run of which nothing is known."""

    curves: dict[str, Curve] = field(default_factory=dict)
    ended_s: Curve = field(default_factory=Curve)
    """When each step ended, in seconds since 1970."""
    rate: Curve = field(default_factory=Curve)
    lives: list[Session] = field(default_factory=list)
    notes: list[Mark] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    exhibits: dict[tuple[str, str, int], dict[str, Any]] = field(default_factory=dict)
    """Lines of the kinds `histogram`, `picture` and `text`, by kind, name and cursor."""
    findings: list[dict[str, Any]] = field(default_factory=list)
    verdict: dict[str, Any] | None = None
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The last line of the kinds `check` and `verify`, by kind."""
    recipe: dict[str, Any] = field(default_factory=dict)
    fingerprint: dict[str, Any] = field(default_factory=dict)
    run_id: str = ""
    num_snapshots: int = 0
    snapshot_cursor: int | None = None
    first: int = 0
    end: int | None = None
    last_s: float = 0.0
    num_unread: int = 0


class Live:
    """A run as it stands. `poll` brings it up to date; a run that has not begun is an empty one."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._follower = Follower(self.folder / "record.jsonl")
        self._facts = _Facts()
        self.version = 0
        """Counts changes, so that nobody draws the same twice."""
        self._status: Status = "waiting"
        self._are_alive: list[bool | None] = []

    def poll(self) -> bool:
        """Read what is new; return whether anything changed."""
        before = self.version
        has_more = True
        while has_more:
            look = self._follower.look()
            has_more = look.has_more
            if look.is_anew:
                self._facts = _Facts()
            for event in look.events:
                self._add(event)
            self.version += look.is_anew or bool(look.events)
        status, alive = self._status, self._are_alive
        self._are_alive = are_alive(self._facts.lives[-1]) if self._facts.lives else []
        self._status = self._find_status()
        self.version += (status, alive) != (self._status, self._are_alive)
        return self.version != before

    def _add(self, event: dict[str, Any]) -> None:
        """Take one event; what does not look as it should is counted and passed over."""
        try:
            add = _ADD.get(event["kind"])
            if add is not None:
                add(self._facts, event)
            self._facts.last_s = _time(event.get("time_s", self._facts.last_s))
            if self._facts.lives:
                self._facts.lives[-1].last_s = self._facts.last_s
        except (KeyError, IndexError, TypeError, ValueError, ArithmeticError, AttributeError):
            self._facts.num_unread += 1

    def _find_status(self) -> Status:
        if not self._facts.lives:
            return "waiting"
        life = self._facts.lives[-1]
        if life.has_ended:
            is_done = self._facts.end is not None and self.cursor >= self._facts.end
            return "done" if is_done else "stopped"
        if not self._are_alive or None in self._are_alive:
            return "unknown"
        return "running" if self._are_alive[0] else "killed"

    @property
    def status(self) -> Status:
        """Whether it waits to begin, runs, is done, stopped before its end, or was killed."""
        return self._status

    @property
    def cursor(self) -> int:
        """The number of finished steps, as far as recorded."""
        steps = self.loss.steps
        if steps:
            return steps[-1] + 1
        return self._facts.lives[-1].cursor if self._facts.lives else 0

    @property
    def end(self) -> int | None:
        """At how many steps it is done, if that is known."""
        return self._facts.end

    @property
    def loss(self) -> Curve:
        """The loss of each step."""
        return self._facts.curves.get("loss") or Curve()

    @property
    def curves(self) -> dict[str, Curve]:
        """Every value by step, the loss first, then by name; the throughput is last."""
        named = {name: self._facts.curves[name] for name in sorted(self._facts.curves) if name != "loss"}
        curves = {"loss": self.loss, **named, "steps_per_s": self._facts.rate}
        return {name: curve for name, curve in curves.items() if len(curve)}

    def points(self, name: str, num: int) -> tuple[list[int], list[float]]:
        """Return what to draw of a curve, steps counted from 1.

        What is recorded only when it changes goes on to the last step.
        """
        curve = self.curves[name]
        steps, values = curve.thinned(num)
        if name.startswith(_HELD) and values and steps[-1] < self.cursor - 1:
            steps, values = [*steps, self.cursor - 1], [*values, values[-1]]
        return list(map(step_number, steps)), values

    def mean(self, name: str, num: int) -> tuple[list[int], list[float]]:
        """Return the moving mean to draw over a curve, steps counted from 1."""
        steps, values = self.curves[name].smoothed(num)
        return list(map(step_number, steps)), values

    def wait_share(self) -> float | None:
        """Return which share of the time the last steps waited for their data."""
        waits, rate = self._facts.curves.get("data_wait_s"), self.rate()
        if not waits or rate is None:
            return None
        last = waits.values[-_RATE_STEPS:]
        return min(sum(last) / len(last) * rate, 1.0)

    @property
    def ended_s(self) -> Curve:
        """When each step ended, in seconds since 1970."""
        return self._facts.ended_s

    @property
    def lives(self) -> list[Session]:
        """Every start of the run, the first one first."""
        return self._facts.lives

    @property
    def alive(self) -> list[bool | None]:
        """Of the processes of the last start, by rank, whether they run; None: on another machine."""
        return self._are_alive

    @property
    def facts(self) -> "_Facts":
        """What else the record says: evaluations, findings, verdict, recipe, fingerprint."""
        return self._facts

    @property
    def num_unread(self) -> int:
        """Lines of the record that could not be read: torn, or not as they should be."""
        return self._follower.num_unread + self._facts.num_unread

    def rate(self) -> float | None:
        """Return the steps per second of late, if it runs and there are enough of them."""
        ended_s = self._facts.ended_s
        if not self._facts.lives or len(ended_s) < 2:
            return None
        first = max(len(ended_s) - 1 - _RATE_STEPS, 0)
        while first < len(ended_s) - 2 and (
            ended_s.steps[first] < self._facts.lives[-1].cursor
            or ended_s.values[-1] - ended_s.values[first] > _RATE_S
        ):
            first += 1
        seconds = ended_s.values[-1] - ended_s.values[first]
        return (len(ended_s) - 1 - first) / seconds if seconds > 0 else None

    def left_s(self) -> float | None:
        """Return in how many seconds it will be done, if it runs and that can be told."""
        rate = self.rate()
        if self.status not in ("running", "unknown") or self.end is None or not rate:
            return None
        return max(self.end - self.cursor, 0) / rate

    def silent_s(self) -> float:
        """Return for how many seconds nothing was recorded."""
        return max(time.time() - self._facts.last_s, 0.0) if self._facts.last_s else 0.0

    def marks(self) -> list[Mark]:
        """Return what happened, in the order of time: kills, resumes, other numbers of processes."""
        marks = list(self._facts.notes)
        for before, life in zip([None, *self.lives], self.lives, strict=False):
            if before is not None:
                marks += _between(before, life)
        if self.status in ("killed", "stopped"):
            life = self.lives[-1]
            words = "killed" if self.status == "killed" else "stopped"
            text = f"{words} after step {life.last_step:,}"
            kind: Literal["killed", "stopped"] = "killed" if self.status == "killed" else "stopped"
            marks.append(Mark(step=life.last_step, kind=kind, text=text, time_s=self._facts.last_s))
        return sorted(marks, key=lambda mark: mark.time_s)


def _between(before: Session, life: Session) -> list[Mark]:
    """What the start of a life says about the one before it."""
    marks = []
    if not before.has_ended:
        lost = before.last_step - life.cursor
        again = f", {lost:,} done again" if lost > 0 else ""
        text = f"killed after step {before.last_step:,}{again}"
        marks.append(Mark(step=before.last_step, kind="killed", text=text, time_s=before.last_s))
    text = f"resumed after step {life.cursor:,}"
    is_same = before.num_processes == life.num_processes
    if not is_same:
        text += f", {before.num_processes} → {life.num_processes} processes"
    kind: Literal["processes", "resumed"] = "resumed" if is_same else "processes"
    marks.append(Mark(step=life.cursor, kind=kind, text=text, time_s=life.started_s))
    return marks


def _whole(value: Any) -> int:
    """A count, or an error: one that a browser could not hold exactly is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_WHOLE:
        raise ValueError(value)
    return value


def _time(value: Any) -> float:
    """Seconds since 1970, or an error: what no calendar knows is none."""
    seconds = float(value)
    if not 0 <= seconds <= _MAX_TIME_S:
        raise ValueError(value)
    return seconds


def _add_start(facts: _Facts, event: dict[str, Any]) -> None:
    cursor = _whole(event["cursor"])
    for curve in (*facts.curves.values(), facts.ended_s, facts.rate):
        curve.drop_from(cursor)
    facts.evaluations = [item for item in facts.evaluations if item["cursor"] <= cursor]
    facts.exhibits = {key: item for key, item in facts.exhibits.items() if key[2] <= cursor}
    pids = [_whole(pid) for pid in event.get("pids") or [event["pid"]]]
    facts.lives.append(
        Session(
            pids=pids,
            host=str(event.get("host", "")),
            num_processes=_whole(event.get("processes", len(pids))),
            cursor=cursor,
            started_s=_time(event["time_s"]),
            last_step=cursor,
        )
    )
    facts.run_id = str(event.get("run", ""))
    facts.recipe, facts.fingerprint = dict(event.get("recipe") or {}), dict(event.get("fingerprint") or {})


def _add_phase(facts: _Facts, event: dict[str, Any]) -> None:
    facts.first = _whole(event["first"])
    facts.end = None if event["end"] is None else _whole(event["end"])


def _add_steps(facts: _Facts, event: dict[str, Any]) -> None:
    first, losses, ends_us = _whole(event["first"]), event["loss"], event["end_us"]
    if not losses:
        raise ValueError("no steps")
    loss = facts.curves.setdefault("loss", Curve())
    written_s = _time(event["time_s"])
    for offset, (value, end_us) in enumerate(zip(losses, ends_us, strict=True)):
        loss.add(first + offset, float(value))
        facts.ended_s.add(first + offset, _time(written_s - (ends_us[-1] - end_us) / 1e6))
    if "wait_us" in event:
        waits = facts.curves.setdefault("data_wait_s", Curve())
        for offset, wait_us in enumerate(event["wait_us"]):
            waits.add(first + offset, wait_us / 1e6)
    num = len(losses)
    life_first = facts.lives[-1].cursor if facts.lives else 0
    is_next = facts.ended_s.at(first - 1) is not None and first > life_first
    began_s = facts.ended_s.at(first - 1) if is_next else facts.ended_s.at(first)
    ended_s = facts.ended_s.at(first + num - 1)
    assert began_s is not None and ended_s is not None
    if ended_s > began_s:
        facts.rate.add(first + num - 1, (num if is_next else num - 1) / (ended_s - began_s))
    if facts.lives:
        facts.lives[-1].last_step = first + num


def _add_values(facts: _Facts, event: dict[str, Any]) -> None:
    name = str(event["name"])
    pairs = [
        (_whole(step), float(value)) for step, value in zip(event["steps"], event["values"], strict=True)
    ]
    # A script may call something of its own "loss" too: that one is another curve.
    curve = facts.curves.setdefault(f"{name} (logged)" if name in _OWN else name, Curve())
    for step, value in pairs:
        curve.add(step, value)


def _add_evaluation(facts: _Facts, event: dict[str, Any]) -> None:
    facts.evaluations.append(
        {"name": str(event["name"]), "cursor": _whole(event["cursor"]), "value": event["value"]}
    )


def _add_exhibit(facts: _Facts, event: dict[str, Any]) -> None:
    key = (event["kind"], str(event["name"]), _whole(event["cursor"]))
    facts.exhibits[key] = {**event, "time_s": _time(event["time_s"])}


def _add_check(facts: _Facts, event: dict[str, Any]) -> None:
    facts.findings = [dict(finding) for finding in event["findings"]]
    facts.answers["check"] = event


def _add_verify(facts: _Facts, event: dict[str, Any]) -> None:
    facts.verdict = {"same": event["same"], "runs": list(event.get("runs") or ())}
    facts.answers["verify"] = event


def _add_snapshot(facts: _Facts, event: dict[str, Any]) -> None:
    facts.num_snapshots += 1
    facts.snapshot_cursor = _whole(event["cursor"])


def _add_end(facts: _Facts, _event: dict[str, Any]) -> None:
    facts.lives[-1].has_ended = True


def _add_note(facts: _Facts, event: dict[str, Any]) -> None:
    words = {
        "lineage": lambda: (
            f"resumed although {event['field']} differed: {event['then']} became {event['now']}"
        ),
        "damage": lambda: f"snapshot {event['path']} is damaged: {event['reason']}",
        "save-failed": lambda: f"a snapshot could not be written: {event['reason']}",
    }
    step = _whole(event.get("step", facts.lives[-1].last_step if facts.lives else 0))
    text = words[event["kind"]]()
    facts.notes.append(Mark(step=step, kind=event["kind"], text=text, time_s=_time(event["time_s"])))


_ADD: dict[str, Callable[[_Facts, dict[str, Any]], None]] = {
    "start": _add_start,
    "phase": _add_phase,
    "steps": _add_steps,
    "values": _add_values,
    "evaluate": _add_evaluation,
    "histogram": _add_exhibit,
    "picture": _add_exhibit,
    "text": _add_exhibit,
    "check": _add_check,
    "verify": _add_verify,
    "snapshot": _add_snapshot,
    "end": _add_end,
    "lineage": _add_note,
    "damage": _add_note,
    "save-failed": _add_note,
}
