"""Recording what the script's lines compute: in windows of steps, by Python's own tracing.

Owns when lines are followed and what is kept of them. Values are summarized at once and never kept. Only the
thread that imported torch is followed, and nothing under a debugger or coverage tool that traces already.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from time import perf_counter
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from truestep.base.device import module_in_use
from truestep.show.in_script.summaries import mark, summarize
from truestep.show.in_script.targets import RETURNED, Target, Targets, targets_of
from truestep.show.in_script.training import Training
from truestep.watch.script.sites import path_of
from truestep.watch.script.tape import Tape

NUM_FIRST = 16
"""Steps at the start that are followed."""
_NUM_EXTRA = 8
"""Windows for each kind of event between steps: an epoch, an evaluation, a scheduler's step."""
_MAX_CURVE, _MAX_MARKS = 256, 64
_MIN_MARKS = 4
_SPARE_S, _SHARE = 2.0, 0.1
"""Recording may take this long, and this share of the time since the start; then no window opens."""
_STARTER = "truestep.watch.script.exec_script"
"""What calls the script: frames above it are not the script's."""
_NESTED = frozenset({"<listcomp>", "<genexpr>", "<lambda>", "<dictcomp>", "<setcomp>"})

SAME_AT_EACH_CALL = "the same at each call"
NEVER_REACHES = "never reaches a loss"


def record(options: dict[str, Any], tape: Tape) -> None:
    """Record from here on, or only `steps`, and write it to the tape when the script ends."""
    steps = options.get("steps")
    Recording(tape, also=tuple(options.get("also", ())), steps=steps and tuple(steps)).begin()


_ORDER = count()


class _Value:
    """What is kept of one name at one line."""

    def __init__(self) -> None:
        self.order = next(_ORDER)
        """Its place among all values, in the order in which they were first made."""
        self.count = 0
        self.first: tuple[str, str] | None = None
        self.last: tuple[str, str] | None = None
        self.facts: dict[str, int] = {}
        self.curve: list[tuple[int, float]] = []
        self.marks: set[Any] = set()
        self.num_marks = 0
        self.history: list[tuple[int, str]] = []
        self.reaches: bool | None = None
        """Whether a loss was computed from it; None if that was never asked."""

    def add(self, value: Any, call: int) -> bool:
        """Add what is seen of a value; return whether there is something to see."""
        found = summarize(value)
        if found is None:
            return False
        self.count += 1
        self.last = (found.text, found.numbers)
        self.first = self.first or self.last
        for fact in found.facts:
            self.facts[fact] = self.facts.get(fact, 0) + 1
        if found.scalar is not None and len(self.curve) < _MAX_CURVE:
            self.curve.append((call, found.scalar))
        if found.numbers and len(self.history) < _MAX_MARKS:
            self.history.append((call, found.numbers))
        if self.num_marks < _MAX_MARKS:
            marked = mark(value)
            if marked is not None:
                self.num_marks += 1
                self.marks.add(marked)
        return True

    def as_fields(self, num_calls: int) -> dict[str, Any]:
        """Return plain values."""
        facts = [fact for fact, num in self.facts.items() if num >= 0.8 * self.count]
        rare = ((fact, num) for fact, num in self.facts.items() if num < 0.8 * self.count)
        facts += [f"{fact} ({num} of {self.count} times)" for fact, num in rare]
        if self.num_marks >= _MIN_MARKS and len(self.marks) == 1 and num_calls > _MIN_MARKS:
            facts.append(SAME_AT_EACH_CALL)
        if self.reaches is False:
            facts.append(NEVER_REACHES)
        return {
            "first": self.first,
            "last": self.last,
            "facts": facts,
            "count": self.count,
            "order": self.order,
            "curve": self.curve,
            "history": self.history,
        }


class _Line:
    """What is kept of one statement."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.values: dict[str, _Value] = {}


class _Frame:
    """A function that is being followed: at which statement it is, and since when."""

    __slots__ = ("begun", "lines", "overhead", "statement", "targets")

    def __init__(self, targets: Targets, lines: dict[int, _Line]) -> None:
        self.targets = targets
        self.lines = lines
        self.statement = 0
        self.begun = 0.0
        self.overhead = 0.0


class Recording:
    """All that is recorded of a script."""

    def __init__(
        self, tape: Tape, *, also: tuple[str, ...] = (), steps: tuple[int, int] | None = None
    ) -> None:
        self._tape = tape
        self._also = tuple(f"/{name}/" for name in also)
        self._files: dict[str, dict[int, _Line]] = {}
        self._is_followed: dict[str, bool] = {}
        self._begun = perf_counter()
        self._spent = 0.0
        self._traced_s = 0.0
        self._since: float | None = None
        self._steps = steps
        """The first and the last step that are followed, if not those of the calendar."""
        self._traced: set[int] = set()
        """Steps that were followed for a part at least: their time is not the script's own."""
        self._until = NUM_FIRST
        self._extra: dict[str, int] = {}
        self._frames: dict[FrameType, _Frame] = {}
        self._thread = threading.get_ident()
        self._training = Training(tape, self)

    def begin(self) -> None:
        """Follow lines from here on."""
        if sys.gettrace() is not None:
            self._tape.note_trouble(
                "show", RuntimeError("a debugger or a coverage tool traces this script already")
            )
            return
        self._tape.listen(
            counted=self._step_counted,
            epoch=lambda *_: self._open_extra("epoch"),
            scheduler_ends=lambda *_: self._open_extra("scheduler"),
            saved=lambda *_: self._open_extra("saved"),
            forward_begins=self._forward_begins,
            closing=self._close,
        )
        self._training.begin()
        if self._steps is None or self._steps[0] == 0:
            self._open()

    @property
    def is_open(self) -> bool:
        """Whether lines are followed now."""
        return self._since is not None

    def line_of(self, frame: FrameType | None) -> "_Line | None":
        """Return what is kept of the innermost followed line from a frame up."""
        while frame is not None:
            known = self._frames.get(frame)
            if known is not None and known.statement:
                return known.lines.setdefault(known.statement, _Line())
            frame = frame.f_back
        return None

    def add(self, line: "_Line", *, label: str, value: Any) -> None:
        """Add a value that belongs to a line without being assigned there."""
        line.values.setdefault(label, _Value()).add(value, line.count)

    @contextmanager
    def own_time(self) -> Iterator[None]:
        """Count the time that this takes as ours, not as the line's."""
        begun = perf_counter()
        try:
            yield
        finally:
            self._spent += perf_counter() - begun

    # Windows

    def _open(self) -> None:
        if self.is_open or threading.get_ident() != self._thread or sys.gettrace() is not None:
            return
        self._since = perf_counter()
        self._traced.add(self._tape.num_steps)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self._follows(frame):
                frame.f_trace = self._enter(frame)
            frame = None if frame.f_globals.get("__name__") == _STARTER else frame.f_back
        sys.settrace(self._call)

    def _shut(self) -> None:
        if self._since is None:
            return
        self._traced_s += perf_counter() - self._since
        self._since = None
        if sys.gettrace() == self._call:
            sys.settrace(None)
        self._frames.clear()

    def _step_counted(self) -> None:
        self._begin_step(self._tape.num_steps)
        if self.is_open:
            self._traced.add(self._tape.num_steps)

    def _begin_step(self, step: int) -> None:
        if self._steps is not None:
            first, last = self._steps
            if step > last:
                self._shut()
            elif step >= first:
                self._open()
            return
        if step & (step - 1) == 0:
            self._until = max(self._until, step + 2)
        if step >= self._until:
            self._shut()
        elif self._has_time():
            self._open()

    def _open_extra(self, kind: str) -> None:
        if self.is_open or self._steps is not None:
            return
        if self._extra.get(kind, 0) < _NUM_EXTRA and self._has_time():
            self._extra[kind] = self._extra.get(kind, 0) + 1
            self._until = self._tape.num_steps + 1
            self._open()

    def _forward_begins(self, module: Any, *_: Any) -> None:
        if not module.training and not torch.is_grad_enabled():
            self._open_extra("evaluation")

    def _has_time(self) -> bool:
        return self._spent < _SPARE_S + _SHARE * (perf_counter() - self._begun)

    # Lines

    def _follows(self, frame: FrameType) -> bool:
        code = frame.f_code
        answer = self._is_followed.get(code.co_filename)
        if answer is None:
            own = self._tape.sites.is_own(code.co_filename)
            answer = own or any(part in code.co_filename for part in self._also)
            self._is_followed[code.co_filename] = answer
        return answer and code.co_name not in _NESTED

    def _call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        if not self._follows(frame):
            return None
        with self.own_time():
            trace = self._enter(frame)
            known = self._frames[frame]
            given = known.targets.parameters.get(frame.f_code.co_firstlineno)
            if given:
                number = known.targets.statements.get(
                    frame.f_code.co_firstlineno, frame.f_code.co_firstlineno
                )
                line = known.lines.setdefault(number, _Line())
                line.count += 1
                self._note_all(frame, line, given)
        return trace

    def _enter(self, frame: FrameType) -> Any:
        file = path_of(frame.f_code.co_filename)
        self._frames[frame] = _Frame(targets_of(frame.f_code.co_filename), self._files.setdefault(file, {}))
        return self._trace

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self._since is None or not self._tape.is_on:
            return None
        known = self._frames.get(frame)
        if known is None or event == "exception":
            return self._trace
        now = perf_counter()
        self._leave_statement(frame, known, now, event, argument)
        if event == "line":
            number = frame.f_lineno
            known.statement = known.targets.statements.get(number, number)
            if number == known.statement:
                known.lines.setdefault(known.statement, _Line()).count += 1
        elif event == "return":
            del self._frames[frame]
        self._spent += perf_counter() - now
        known.begun, known.overhead = perf_counter(), self._spent
        return self._trace

    def _leave_statement(  # limits: private to this class
        self, frame: FrameType, known: _Frame, now: float, event: str, argument: Any
    ) -> None:
        if not known.statement or (
            event == "line"
            and frame.f_lineno != known.statement
            and known.targets.statements.get(frame.f_lineno) == known.statement
        ):
            return  # another line of the same statement
        line = known.lines.setdefault(known.statement, _Line())
        if known.begun:
            line.seconds += max(0.0, now - known.begun - (self._spent - known.overhead))
        if event == "return" and argument is not None and known.statement in known.targets.returns:
            self._note(line, RETURNED, argument)
        named = known.targets.targets.get(known.statement)
        if named:
            self._note_all(frame, line, named)

    def _note_all(self, frame: FrameType, line: _Line, named: list[Target]) -> None:
        variables = frame.f_locals
        for target in named:
            value = variables.get(target.variable, _MISSING)
            if target.attribute is not None and value is not _MISSING:
                value = _attribute(value, target.attribute)
            if value is not _MISSING:
                self._note(line, target.label, value)

    def _note(self, line: _Line, label: str, value: Any) -> None:
        entry = line.values.get(label)
        if entry is None:
            entry = line.values[label] = _Value()
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return  # inside of a transform values have no numbers yet
        try:
            with self._tape.no_user_overrides(), torch.no_grad():
                entry.add(value, line.count)
                if isinstance(value, Tensor) and value.requires_grad and not value.is_leaf:
                    self._training.follow(value, entry)
        except Exception as error:  # noqa: BLE001 - a value that cannot be read is left out
            self._tape.note_trouble(f"show: {label}", error)

    def _close(self) -> None:
        self._shut()
        lines = {
            file: {
                number: {
                    "count": line.count,
                    "seconds": round(line.seconds, 6),
                    "values": {
                        label: value.as_fields(line.count)
                        for label, value in line.values.items()
                        if value.count
                    },
                }
                for number, line in sorted(found.items())
                if line.count
            }
            for file, found in self._files.items()
        }
        self._tape.write(
            "show",
            files=lines,
            steps=self._tape.num_steps,
            step_lines=self._training.step_lines,
            traced_s=round(self._traced_s - self._spent, 3),
            own_s=round(self._spent, 3),
            timed_from=self._timed_from(),
            traced=sorted(self._traced),
        )

    def _timed_from(self) -> int | None:
        """Return the first step whose time is not mostly that of recording, None if time tells nothing."""
        if module_in_use() is not None:  # work goes on after a pass has returned
            return None
        return NUM_FIRST if self._tape.num_steps > 2 * NUM_FIRST else 1


_MISSING = object()


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute without calling code of the user's: what the object itself holds."""
    held = getattr(value, "__dict__", None)
    if type(held) is not dict:
        return _MISSING
    for place in (held, held.get("_modules"), held.get("_parameters"), held.get("_buffers")):
        if isinstance(place, dict) and name in place:
            return place[name]
    return _MISSING
