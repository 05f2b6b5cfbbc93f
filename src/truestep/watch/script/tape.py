"""The tape: moments as numbers in memory, written as lines of JSON a few times per second.

Owns the file's format, the count of steps, and ending the script after enough of them.
A moment costs a look-up and one append; kinds, sites and facts are written once for all that are alike.
"""

import atexit
import os
import sys
import threading
import weakref
from array import array
from binascii import b2a_base64
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from os import register_at_fork
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from truestep.base.redaction import redacted
from truestep.errors import FolderUnusable
from truestep.record import VERSION, Record
from truestep.watch.evidence.kinds import NEVER_CUT, NOT_CHECKED, NUM_SHARED, UNREAD, Facts
from truestep.watch.plan import Plan
from truestep.watch.script.interrupts import is_from_handler, reason_of
from truestep.watch.script.sites import Sites
from truestep.watch.script.under_way import UnderWay
from truestep.watch.script.window import EVERY, Window

_MAX_RAISED = 5
_NUM_FIRST = 8
"""Steps at the start whose values are read, also from an accelerator, for which the script then waits."""
_MAX_KINDS = 50_000
_MAX_THINGS = 4096
"""From so many of a kind on, those of a class share a number: a loss made anew in each step has no end."""
_MAX_TROUBLES = 256

_NUMBERED = ("loader", "model", "optimizer", "scheduler")
"""The objects that facts refer to by numbers."""

EVENTS = (
    "forward_begins",  # the outermost module, its arguments, its keywords
    "forward_ends",  # the same and what it returned
    "backward_begins",  # the tensors, and "backward" or "grad"
    "backward_ends",
    "step_begins",  # the optimizer, its number
    "step_ends",
    "stepped_by_hand",  # what stands for the optimizer, its number
    "turned_by_hand",  # by a script that asked for gradients as a function's result
    "zero_begins",  # the optimizer or the module, and whether its gradients are zeroed in place
    "clip_ends",  # the parameters, the first few if they come from a generator; the limit; what it returned
    "unscale_begins",  # the scaler of gradients, the optimizer
    "unscale_ends",
    "scheduler_ends",  # the scheduler, its number
    "scheduler_inner",  # a scheduler that another one steps
    "epoch",  # the loader, its number
    "batch",  # the loader's number, the batch
    "counted",  # nothing: a step was counted
    "opened",  # nothing: all calls are observed again, after steps that were only counted
    "pausing",  # nothing: from here on steps are only counted
    "probed",  # the tensors that a backward pass begins at, in a step that is only counted
    "ending",  # nothing: enough steps were made, and the script is about to be left
    "closing",  # nothing: the script has ended, or was ended
    "run_arrives",  # the class of our own runs: its module was imported
    "saved",  # the path of the file that was saved, None if it has no name
)
"""What inspectors can listen to."""

Key = tuple[type[Facts], int, Facts]
"""Kind, number of the site, and the facts that many moments share."""


class Ended(SystemExit):
    """Enough steps were made. No error: frameworks tidy up on its way out, and the exit code is 0."""

    def __init__(self) -> None:
        super().__init__(0)


class Tape:
    """Where all observers of a process write."""

    chain: Any = None
    """What keeps digests, if the plan asks for some; for observers of modules that arrive later."""
    recorder: Any = None
    """What notes operations, if the plan asks for some; told of each step that is counted."""
    failed_with: BaseException | None = None
    """What the script has raised."""
    _near_until = 0

    def __init__(self, folder: str, plan: Plan, *, is_part: bool = False) -> None:
        self.plan = plan
        self.is_part = is_part
        """Whether a part of a process is observed that had begun before, and goes on after it."""
        self.sites = Sites()
        self.is_on = True
        self.is_over = False
        """Whether the script shall end where it would begin another step."""
        self._withdrawn: str | None = None
        self.under_way = UnderWay(self._note_other_training)
        self.window = Window(plan)
        """When all calls are observed: otherwise steps are only counted."""
        self.num_steps = 0
        self._num_raised = 0
        self.is_looked_at = True
        """Whether values are read at this step."""
        self.no_user_overrides: Callable[[], AbstractContextManager[Any]] = nullcontext
        """Makes a context in which torch calls nothing of the user's, once torch is there."""
        self.families: dict[str, Any] = {}
        """The objects that observe, by their classes in the table of events."""
        self._after_step: list[Callable[[], None]] = []
        self._listeners, self._near = _nobody(), _nobody()
        self._troubles, self._dismissed = set[str](), set[int]()
        self._pid = os.getpid()
        self._begun_ns = perf_counter_ns()
        # Addresses come again only if all that is asked of the allocator does: then no flush by the clock.
        self._period_ns = sys.maxsize // 2 if "addresses" in plan.frozen else int(plan.flush_s * 1e9)
        self._due_ns = self._begun_ns + self._period_ns
        self._kinds: dict[Key, int] = {}
        self._new_kinds: list[list[Any]] = []
        self._num_sites = 1
        self._rows: list[int] = []
        self._values: list[tuple[int, int, Facts]] = []
        self._things: dict[str, dict[int, tuple[int, Any]]] = {kind: {} for kind in _NUMBERED}
        self._num_things = dict.fromkeys(_NUMBERED, 0)
        self._shared: dict[tuple[str, str], int] = {}
        self._lock = threading.RLock()
        self._begin_record(Path(folder))
        atexit.register(self.close)  # registered first, so called last
        register_at_fork(after_in_child=calling_weakly(self.leave))

    def _begin_record(self, folder: Path) -> None:
        self.path = _new_file(folder, self._pid)
        self._append(
            "start", version=VERSION, pid=self._pid, argv=redacted(sys.orig_argv), plan=self.plan.as_fields()
        )

    def _append(self, kind: str, **fields: Any) -> None:
        """Write a line. The file is open only meanwhile: the script may close all descriptors."""
        try:
            record = Record(self.path)
        except (OSError, FolderUnusable):  # the script may have set limits; its end is missing then
            return
        record.write(kind, **fields)
        record.close()

    def mark(self, facts: Facts, site: int, begun_ns: int) -> None:  # limits: every step calls it
        """Note that a moment which began then has ended."""
        now = perf_counter_ns()
        kind = facts.__class__
        num_shared = NUM_SHARED[kind]
        is_whole = num_shared == len(facts)
        key = (kind, site, facts if is_whole else facts[:num_shared])
        number = self._kinds.get(key)
        if number is None:
            number = self._add_kind(key)
        self._rows.extend((number, begun_ns, now))
        if not is_whole:
            varying = facts[num_shared:]
            if varying.count(None) < len(varying):
                self._values.append((number, begun_ns, varying))
        if now > self._due_ns:
            self.flush()

    def note(self, facts: Facts) -> None:
        """Note something that has no length, at the user's line that led to it."""
        self.mark(facts, self.sites.here(1), perf_counter_ns())

    def listen(
        self, observer: Any = None, /, *events: str, close_look: bool = False, **acts: Callable[..., None]
    ) -> None:
        """Have functions called at events, with the objects themselves; of an observer, its methods so named.

        With `close_look` only at steps that are looked at, or soon after a change. The name of an operation
        is an event too, if the look at operations reads no bits: its row, arguments, keywords and result.
        """
        lists = self._near if close_look else self._listeners
        named = {event: observer if callable(observer) else getattr(observer, event) for event in events}
        for event, act in {**named, **acts}.items():
            if "." in event:
                lists.setdefault(event, [])
            lists[event].append(act)

    def ignore(self, *acts: Callable[..., None]) -> None:
        """Call these no more."""
        for lists in (self._listeners, self._near):  # new lists: one of these may be walked now
            lists.update({event: [item for item in lists[event] if item not in acts] for event in lists})

    def follow_steps(self, act: Callable[[], None]) -> None:
        """Call it once a step is counted and written: for those who end, time or hold up steps."""
        self._after_step.append(act)

    def readers_of(self, operation: str) -> list[Callable[..., None]]:
        """Return who listens to an operation."""
        return self._listeners.get(operation, [])

    def emit(self, event: str, *things: Any) -> None:
        """Tell the inspectors; some of them only at steps that are looked at, or soon after a change."""
        listeners, near = self._listeners[event], self._near[event]
        if near and (self.is_looked_at or self.num_steps < self._near_until):
            listeners = [*listeners, *near]
        if listeners:
            self._call_listeners(listeners, things, event)

    def call_listener(self, listener: Callable[..., None], *things: Any) -> None:
        """Tell one inspector, by a method of its own, what only it wants to know."""
        if id(getattr(listener, "__self__", listener)) not in self._dismissed:
            self._call_listeners([listener], things, listener.__name__)

    def _call_listeners(
        self, listeners: list[Callable[..., None]], things: tuple[Any, ...], event: str
    ) -> None:
        recorder = self.recorder
        mode = recorder.set_aside() if recorder is not None and recorder.is_open else None
        try:
            with self.no_user_overrides():
                for listener in listeners:
                    try:
                        listener(*things)
                    except Exception as error:
                        if is_from_handler(error):
                            raise
                        self._dismiss(listener)
                        self.note_trouble(f"{listener.__module__} at {event}", error, is_off=True)
        finally:
            if mode is not None:
                mode.is_aside = False

    def attempt(self, watch: Callable[..., None], *given: Any, name: str = "") -> None:
        """Let observers be put in place; those that cannot be are missing, and the script goes on."""
        try:
            watch(self, *given)
        except Exception as error:  # noqa: BLE001 - written down
            self.note_trouble(name or f"{watch.__module__}.{watch.__name__}", error, is_off=True)

    def _dismiss(self, listener: Callable[..., None]) -> None:
        """Tell an inspector nothing more: after a part that it missed, the rest would mislead it."""
        owner = getattr(listener, "__self__", listener)
        self._dismissed.add(id(owner))
        every = [
            item for listeners in (*self._listeners.values(), *self._near.values()) for item in listeners
        ]
        self.ignore(*(item for item in every if getattr(item, "__self__", item) is owner))

    def look_closely(self, num_steps: int) -> None:
        """Something has changed: tell all inspectors in this step, and for so many in all."""
        self._near_until = max(self._near_until, self.num_steps + num_steps)
        self.window.extend(self.num_steps, num_steps)
        if not self.window.is_open:
            self.open_window()

    def open_window(self, *, is_whole: bool = False) -> None:
        """Observe all calls from here on: from a step's beginning, or from within it."""
        if not self.window.is_open and self.is_on:
            self.window.open()
            self.window.is_whole = is_whole
            self._set_look()
            if self.recorder is not None:
                self.recorder.move(self.num_steps)
            self.emit("opened")

    def observe_change(self, *change: Any) -> None:
        """Observe the steps after a change: the first times that it happens, then more and more rarely."""
        if self.window.extends_for(change, self.num_steps):
            self.open_window()

    def close_window(self) -> None:
        """Only count steps from here on, if that is enough for a while."""
        if self.window.is_over(self.num_steps):
            self.is_looked_at = False
            self.emit("pausing")
            self.window.close()

    def note_trouble(self, where: str, error: BaseException, *, is_off: bool = False) -> None:
        """What goes wrong in watching is written down and must not end the script.

        With `is_off` nothing is observed there from here on.
        """
        text = f"{where}: {type(error).__name__}: {error}"
        if text not in self._troubles and len(self._troubles) < _MAX_TROUBLES:
            self._troubles.add(text)
            self.write("trouble", error=text, is_off=is_off)

    def write(self, kind: str, **fields: Any) -> None:
        """Write a line of its own, after all moments before it."""
        self.flush()
        self._append(kind, **fields)

    def things(self, kind: str) -> dict[int, tuple[int, Any]]:
        """Return the numbers of all objects of a kind by their ids, for a quick look."""
        return self._things[kind]

    def number(self, kind: str, thing: Any) -> int:
        """Return a number for an object of a kind. The object is not kept alive."""
        things = self._things[kind]
        known = things.get(id(thing))
        if known is not None:
            return known[0]
        address, number = id(thing), self._new_number(kind, thing)
        try:
            kept: Any = weakref.ref(thing, lambda _: things.update({-number - 1: things.pop(address)}))
        except TypeError:
            kept = thing
        things[address] = (number, kept)
        return number

    def _new_number(self, kind: str, thing: Any) -> int:
        number = self._num_things[kind]
        if number >= _MAX_THINGS:
            number = self._shared.setdefault((kind, type(thing).__qualname__), number)
        self._num_things[kind] = max(self._num_things[kind], number + 1)
        return number

    def _note_other_training(self) -> None:
        error = RuntimeError(f"{NOT_CHECKED}training in more threads than one: only the first is observed")
        self.note_trouble("steps of an optimizer" if self.chain is None else UNREAD, error)

    def count_step(self) -> None:
        """Count a step."""
        self.num_steps += 1
        self.window.is_whole = True
        self._set_look()
        if self.plan.steps is not None and self.num_steps >= self.plan.steps:
            self.is_over = True
        if self.recorder is not None:
            self.recorder.move(self.num_steps)
        self.emit("counted")
        for act in self._after_step:
            act()

    def _set_look(self) -> None:
        """Set whether values are read at this step: the first few and some later ones."""
        self.is_looked_at = self.num_steps < _NUM_FIRST
        if self.num_steps >= _NUM_FIRST and self.num_steps % EVERY == 0:
            from truestep.base.device import module_in_use  # noqa: PLC0415 - the script imports torch, not we

            self.is_looked_at = module_in_use() is None  # reading would make the script wait for the device

    def end_if_over(self) -> None:
        """Leave the script if enough steps were made."""
        if self.is_over:
            self._end_script()

    def _end_script(self) -> None:
        """Leave the script. One that catches everything gets it a few times, then the process ends."""
        self._num_raised += 1
        if self._num_raised == 1:
            self.emit("ending")
        if self._num_raised > _MAX_RAISED:
            self.close()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        if threading.current_thread() is not threading.main_thread():
            raise SystemExit(0)  # a thread that ends by a class of ours shows a traceback
        raise Ended

    def _add_kind(self, key: Key) -> int:
        kind, site, shared = key
        if len(self._kinds) >= _MAX_KINDS and kind not in NEVER_CUT:
            key = (kind, site, tuple(None for _ in shared))  # facts without end: keep the place
        with self._lock:
            if key in self._kinds:  # it was cut, or another thread has added it meanwhile
                return self._kinds[key]
            number = self._kinds[key] = len(self._kinds)
            self._new_kinds.append([number, kind.__name__, site, [plain(fact) for fact in key[2]]])
        return number

    def flush(self) -> None:
        """Write what is in memory."""
        if not self.is_on:
            return
        with self._lock:
            rows, self._rows = self._rows, []
            values, self._values = self._values, []
            kinds, self._new_kinds = self._new_kinds, []
            sites = self.sites.table[self._num_sites :]
            self._num_sites += len(sites)
            self._due_ns = perf_counter_ns() + self._period_ns
            if rows or kinds or sites:
                # As text these numbers would take longer to write than moments take to note.
                packed = b2a_base64(array("q", rows).tobytes(), newline=False).decode()
                fields = {"sites": sites, "kinds": kinds, "base_ns": self._begun_ns, "rows": packed}
                # The steps come last: who follows the script reads only the end of the file.
                self._append("moments", **fields, values=values, steps=self.num_steps)

    def withdraw(self, reason: str) -> None:
        """Write the rest, and observe no more: the script goes on alone."""
        self._withdrawn = reason
        self.close()

    def close(self) -> None:
        """Write the rest and how the script ended."""
        if not self.is_on or os.getpid() != self._pid:
            return
        if self.recorder is not None:
            self.recorder.close()
        self.emit("closing")
        error = self.failed_with
        if error is not None and not isinstance(error, SystemExit):
            ended: dict[str, Any] = {"how": "raised", "error": f"{type(error).__name__}: {error}"}
        elif self._withdrawn is not None:
            ended = {"how": "withdrawn", "error": self._withdrawn}
        else:
            is_early = self.is_part or self._num_raised
            ended = {"how": "stopped" if is_early else "finished", "error": reason_of(error)}
        self.write("end", steps=self.num_steps, **ended)
        self.leave()
        atexit.unregister(self.close)

    def has(self, kind: type[Facts]) -> bool:
        """Whether moments of a kind were noted."""
        return any(key[0] is kind for key in [*self._kinds])  # in one go: other threads add to it

    def rejoin(self, num_bytes: int) -> None:
        """Observe again, in a forked child: the first part of the parent's record is its past too."""
        _, _, past = self.path.read_bytes()[:num_bytes].partition(b"\n")
        self._pid = os.getpid()
        self._begin_record(self.path.parent)
        with self.path.open("ab") as file:
            file.write(past)
        self.recorder = None  # it stays with the parent
        self.is_on = True

    def leave(self) -> None:
        """Observe nothing from here on: in a forked child, and at the end."""
        self.is_on = False
        self.is_over = False
        self._rows, self._values, self._new_kinds = [], [], []
        self._lock = threading.RLock()  # a child may have inherited a held one
        self.under_way.forget_others()


def calling_weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return what calls a method as long as its object lives: what is called at forks stays registered."""
    found = weakref.WeakMethod(method)

    def call() -> None:
        act = found()
        if act is not None:
            act()

    return call


def plain(fact: Any) -> Any:
    """Return a fact as JSON can hold it: shapes as lists, data types and devices as texts."""
    if fact is None or isinstance(fact, bool | int | float | str):
        return fact
    if isinstance(fact, tuple | list):
        return [plain(item) for item in fact]
    return str(fact)


def _nobody() -> dict[str, list[Callable[..., None]]]:
    return {name: [] for name in EVENTS}


def _new_file(folder: Path, pid: int) -> Path:
    """Return a name that no process has used: ids come again on machines and in containers."""
    for turn in range(10_000):
        path = folder / f"process-{pid}-{turn}.jsonl"
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        return path
    raise AssertionError(f"no free name in {folder}")
