"""Inside the script's process: a warm-up, steps that are only timed, then a few under torch.profiler.

Owns the order of these and what is written for the parent (`profile` has the other side). Times come from the
tape's own moments. Runs in somebody's process: nothing here may raise or draw.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter_ns, process_time_ns
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from truestep.base.device import module_in_use
from truestep.tune.in_script.facts_so_far import FactsSoFar
from truestep.tune.in_script.fetching import Fetch
from truestep.tune.in_script.operators import visible_operators
from truestep.tune.profile.phases import CLOSURE, DETAILS
from truestep.tune.profile.pieces import OwnFiles, Pieces
from truestep.watch.evidence.facts.surroundings import CopiedToDevice, HostWaited
from truestep.watch.hooks.table import Hook, Observation, put
from truestep.watch.script.tape import Tape

_STEADY = 1.25
"""Three steps in a row within this factor of one another: the script has warmed up."""
_MAX_TRACED_NS = 5_000_000_000
_ANCHOR, _NUM_ANCHORS = "truestep: clock ", 8
"""Ranges that tie the profiler's clock to ours."""


def observe(value: dict[str, Any], tape: Tape) -> None:
    """Go through all parts of a profile. `value` is the course; results go where the tape writes."""
    _Course(value, tape)


class _Course:
    """Where the profile stands: it moves on at the end of each step."""

    def __init__(self, value: dict[str, Any], tape: Tape) -> None:
        self._value, self._tape = value, tape
        self._folder = tape.path.parent
        self._act: Callable[[int], None] = self._warm
        self._took: list[int] = []
        self._ended_ns = perf_counter_ns()
        self._count = 0
        self._raw: dict[str, Any] = {"troubles": []}
        self._models: dict[int, nn.Module] = {}
        self._trace: _Trace | None = None
        self._fetch = Fetch(tape)
        self._facts_seen = FactsSoFar(tape)
        self._files = OwnFiles(tape.sites.is_own)
        self._num_ahead = 0
        tape.listen(forward_begins=self._meet_model, epoch=self._meet_loader, closing=self._close)
        tape.follow_steps(self._end_step)
        self._is_finished = False
        _mark_closures(tape)
        if torch.accelerator.is_available():
            _mark_device(tape)

    def _meet_model(self, module: nn.Module, _args: Any, _kwargs: Any) -> None:
        self._models[id(module)] = module

    def _meet_loader(self, loader: Any, _number: int) -> None:
        # So many batches are there before the first step is over: the steps after it do not wait for them.
        self._num_ahead = max(self._num_ahead, loader.num_workers * (loader.prefetch_factor or 0))

    def _end_step(self) -> None:
        if self._is_finished:
            return
        now = perf_counter_ns()
        self._act(now - self._ended_ns)
        self._ended_ns = perf_counter_ns()

    def _warm(self, took_ns: int) -> None:
        self._took.append(took_ns)
        num, last = len(self._took), self._took[-3:]
        is_steady = max(last) <= _STEADY * min(last)
        least = min(self._value["warm"] + self._num_ahead, self._value["max_warm"])
        if (num >= least and is_steady) or num >= self._value["max_warm"]:
            self._begin_timing()

    def _begin_timing(self) -> None:
        self._raw["first"] = self._raw["last"] = self._tape.num_steps
        self._timing_ns = perf_counter_ns()
        self._cpu_ns = process_time_ns()
        self._fetch.begin()
        self._act = self._time

    def _time(self, _took_ns: int) -> None:
        self._raw["last"] = self._tape.num_steps
        num = self._raw["last"] - self._raw["first"]
        elapsed_s = (perf_counter_ns() - self._timing_ns) / 1e9
        is_enough = num >= self._value["steps"] and elapsed_s >= self._value["least_s"]
        if is_enough or num >= self._value["max_steps"] or elapsed_s >= self._value["most_s"]:
            self._note_timing()
            self._begin_trace()

    def _note_timing(self) -> None:
        num = max(1, self._raw["last"] - self._raw["first"])
        cpu_s = (process_time_ns() - self._cpu_ns) / 1e9
        fetch_s, workers_s = self._fetch.end()
        self._raw |= {
            "cpu_s": cpu_s / num,
            "fetch_cpu_s": fetch_s / num,
            "workers_cpu_s": None if workers_s is None else workers_s / num,
            "threads": torch.get_num_threads(),
            "device": _device_of(self._models.values()),
        }

    def _begin_trace(self) -> None:
        if torch._C._autograd._profiler_enabled():
            self._raw["troubles"].append("the script uses torch.profiler, so there are no details")
            self._finish()
            return
        self._count = 0
        self._act = self._trace_lines
        self._trace = _Trace(self._tape)
        self._trace.begin()

    def _trace_lines(self, _took_ns: int) -> None:
        self._count += 1
        assert self._trace is not None
        if self._count < self._value["details"] and self._trace.elapsed_ns() < _MAX_TRACED_NS:
            return
        trace, self._trace = self._trace, None
        trace.end()
        self._keep(lambda: self._write_pieces(trace))
        self._finish(is_complete=True)

    def _write_pieces(self, trace: "_Trace") -> None:
        pieces = Pieces(models=self._models.values(), files=self._files, active=trace.active)
        begun_ns, thread = trace.clock()
        pieces.read(trace.roots(), begun_ns=begun_ns, thread=thread)
        self._raw |= {"details": self._count, **pieces.tables()}
        pieces.save(self._folder / f"pieces-{os.getpid()}.npz")

    def _keep(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001 - told; the rest of the profile stands
            self._raw["troubles"].append(f"{type(error).__name__}: {error}")

    def _close(self) -> None:
        """The script has ended by itself: what there is is written."""
        if self._is_finished:
            return
        if "first" in self._raw and "cpu_s" not in self._raw:
            self._note_timing()
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.end()
            if self._count:
                self._keep(lambda: self._write_pieces(trace))
        self._finish()

    def _finish(self, *, is_complete: bool = False) -> None:
        self._raw["is_complete"] = is_complete
        self._raw["steps"] = self._tape.num_steps
        self._raw["facts"] = self._facts_seen.facts()
        (self._folder / f"profile-{os.getpid()}.json").write_text(json.dumps(self._raw))
        self._is_finished = True
        self._tape.is_over = True


class _Trace:
    """One stretch under torch.profiler."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.active = _active_frames()
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():  # not run on a GPU yet
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.profiler = torch.profiler.profile(
            activities=activities,
            with_stack=True,
            acc_events=True,  # otherwise torch 2.11 warns, and a script may make errors of warnings
        )
        self._operators = ExitStack()

    def begin(self) -> None:
        self._operators.enter_context(visible_operators())
        self.profiler.start()
        self._anchors_ns = []
        for number in range(_NUM_ANCHORS):
            with torch.profiler.record_function(f"{_ANCHOR}{number}"):
                self._anchors_ns.append(perf_counter_ns())
        self._begun_ns = perf_counter_ns()
        self._tape.mark(HostWaited(DETAILS), 0, self._begun_ns)

    def elapsed_ns(self) -> int:
        return perf_counter_ns() - self._begun_ns

    def end(self) -> None:
        self._tape.mark(HostWaited(DETAILS), 0, perf_counter_ns())
        results: Any = self.profiler.profiler
        results.acc_events = False  # else all names are decoded here, and torch's need not be UTF-8
        try:
            self.profiler.stop()
        finally:
            self._operators.close()

    def roots(self) -> list[Any]:
        results: Any = self.profiler.profiler
        return list(results.kineto_results.experimental_event_tree())

    def clock(self) -> tuple[int, int]:
        """Return by the profiler's clock when the details began, and its number for this thread."""
        waiting, found = self.roots(), dict[int, tuple[int, int]]()
        while waiting and len(found) < _NUM_ANCHORS:
            event = waiting.pop()
            if event.name.startswith(_ANCHOR):
                number = int(event.name.removeprefix(_ANCHOR))
                middle = (event.start_time_ns + event.end_time_ns) // 2
                apart_ns = middle - self._anchors_ns[number]
                found[event.duration_time_ns] = (apart_ns + self._begun_ns, event.start_tid)
            waiting.extend(event.children)
        return found[min(found)]  # the shortest range is the surest


def _active_frames() -> dict[tuple[str, int, str], int]:
    """Return where the functions that are being executed begin: the profiler tells where they stand."""
    frame, found = sys._getframe(1), {}
    while frame is not None:
        code = frame.f_code
        found[code.co_filename, frame.f_lineno, code.co_name] = code.co_firstlineno
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _mark_closures(tape: Tape) -> None:
    """Mark when a step calls back: what it does there is no work of the optimizer's."""

    def wrap(_optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure) or not tape.is_on:
            return None

        def marked(*inner: Any, **more: Any) -> Any:
            begun = perf_counter_ns()
            try:
                return closure(*inner, **more)
            finally:
                tape.mark(HostWaited(CLOSURE), 0, begun)

        if len(args) > 1:
            return (args[0], marked, *args[2:]), kwargs
        return args, {**kwargs, "closure": marked}

    register_optimizer_step_pre_hook(wrap)


def _mark_device(tape: Tape) -> None:
    """Wait for the device after each pass, and mark the waiting as a part of it; mark copies to it.

    It takes away what overlaps between passes: shares are those of a script that waits.
    """

    def wait(phase: str) -> Callable[..., None]:
        def listener(*_: Any) -> None:
            if module_in_use() is not None:
                begun = perf_counter_ns()
                torch.accelerator.synchronize()
                tape.mark(HostWaited(phase), 0, begun)

        return listener

    for event, phase in (("forward", "forward"), ("backward", "backward"), ("step", "optimizer")):
        tape.listen(wait(phase), f"{event}_ends")
    put(tape, [Hook(f"torch.Tensor.{name}", _note_copy, given=(tape,)) for name in ("to", "cuda")])


def _note_copy(tape: Tape, tensor: torch.Tensor, /, *_: Any, **__: Any) -> Observation:
    begun = perf_counter_ns()
    moved = yield
    if isinstance(moved, torch.Tensor) and moved.device != tensor.device:
        torch.accelerator.synchronize()
        tape.mark(CopiedToDevice("to", None), tape.sites.here(3), begun)


def _device_of(models: Any) -> str:
    for model in models:
        for parameter in model.parameters():
            return str(parameter.device.type)
    return "cpu"
