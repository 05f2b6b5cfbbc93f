"""The recorder: every operation of torch in a window of steps, with digests of what went in and came out.

Owns the mode that sees operations, in which threads it is on and when. Reads and never writes. Who called is
in `callers`, what is kept in `traces`.
"""

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from os import register_at_fork
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo.eval_frame import set_eval_frame
from torch._ops import OpOverload
from torch.autograd.function import BackwardCFunction
from torch.utils import _python_dispatch as dispatch

from truestep.watch.evidence.operation import HAS_GENERATOR, IS_RANDOM, IS_UNINITIALISED, PHASES, Row
from truestep.watch.hooks.table import Function, Hook, Observation, drop_frames, hide
from truestep.watch.operations.callers import Caller, Callers, frame_above
from truestep.watch.operations.traces import (
    Given,
    OperationSchema,
    TableWriter,
    Traces,
    find_generator,
    gather,
    scalars_of,
    state_to_draw,
    tensors_in,
)
from truestep.watch.script.interrupts import is_from_handler
from truestep.watch.script.refs import ByIdentity
from truestep.watch.script.tape import Tape, calling_weakly

_BLOCK = 512
_MAX_NEW_NODES = 64
_FORWARD, _BACKWARD = PHASES.index("forward"), PHASES.index("backward")
_NOWHERE = (0, 0, 0)


class Mode(dispatch.TorchDispatchMode):
    """Sees the operations of one thread, below autograd and below modes of the user's."""

    supports_higher_order_operators = True

    def __init__(self, recorder: "OperationRecorder", thread: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.thread = thread
        self.origins: dict[int, tuple[int, int, int]] = {}
        """By the number that autograd gives to a node: name, line and module of what it belongs to."""
        self.is_aside = False
        """Whether what runs is our own."""
        self._last_node = num_nodes()
        self._last_origin = _NOWHERE

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or else the compiler would be imported for it; `set_eval_frame` does the same

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Bits: otherwise what is compiled would quietly run uncompiled."""
        return True

    def __torch_dispatch__(  # limits: torch calls it like this
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        recorder = self.recorder
        try:
            # A mode below this one is one of the compiler's: nothing is computed, or not yet.
            is_noted = recorder.is_open and not self.is_aside and isinstance(func, OpOverload)
            if not is_noted or torch._C._len_torch_dispatch_stack():
                return func(*args, **(kwargs or {}))
            if types and any(kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ for kind in types):
                return NotImplemented  # a subclass does it by operations on plain tensors, which come here
            return self._observe(func, args, kwargs or {})
        except BaseException as error:
            drop_call(error)
            raise

    def _observe(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder = self.recorder
        compiler = set_eval_frame(None)
        try:
            end = recorder.attempt(recorder.begin, self, func, args, kwargs)
            result = func(*args, **kwargs)
            if end is not None:
                recorder.attempt(end, result)
            return result
        finally:
            set_eval_frame(compiler)

    hide(__torch_dispatch__)
    hide(_observe)

    def claim_nodes(self, origin: tuple[int, int, int], *, has_node: bool) -> None:
        """Say which operation the nodes belong to that autograd has made since the last one.

        A node is made before its operation is called. Others, as for a changed view, are made after it.
        """
        last = num_nodes()
        for node in range(max(self._last_node, last - _MAX_NEW_NODES), last):
            is_own = has_node and node == last - 1
            self.origins.setdefault(node, origin if is_own else self._last_origin)
        self._last_node = last
        self._last_origin = origin


def num_nodes() -> int:
    """Return how many nodes autograd has made in this thread."""
    return int(torch._C._autograd._get_sequence_nr())


def _is_in_compiled_call() -> bool:
    """Whether torch.compile's wrapper is on the stack. It puts the keys of modes back that were on before it.

    Without a mode that belongs to them, the next operation would end in an internal error of torch's.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "compile_wrapper":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "torch._dynamo.eval_frame"


class OperationRecorder:
    """The operations of a process."""

    is_light = False
    """Whether only what rules read is kept."""

    def __init__(self, tape: Tape) -> None:
        assert tape.plan.operations is not None
        self._tape = tape
        self._first, self._last = tape.plan.operations
        self.is_open = False
        """Whether operations are noted."""
        self._is_entered = False
        """Whether the mode is on; it is also while nothing is noted, since a step has too many."""
        self._tables = TableWriter()
        self._callers = Callers(self._tables, tape.sites.is_own, is_light=self.is_light)
        self._traces = Traces(Path(tape.path), bits=tape.plan.bits)
        self._facts: dict[OpOverload, OperationSchema] = {}
        self._count = itertools.count()
        self._rows: list[Row] = []
        self._lock = threading.RLock()
        self._local = threading.local()
        self._modes: list[Mode] = []
        self._num_threads = 1
        self._numbers = ByIdentity[threading.Thread, int]()
        register_at_fork(after_in_child=calling_weakly(self._leave_child))

    def move(self, num_steps: int) -> None:
        """So many steps have been made: begin to note, or end."""
        if num_steps == self._first:
            self._callers.is_setup = not num_steps
            self._open()
        elif num_steps > self._last:
            self.close()
        elif self._is_entered:
            self.is_open = True
            self._flush()

    def set_aside(self) -> Mode | None:
        """Our own work begins: return the mode that shall not note it."""
        mode: Mode | None = getattr(self._local, "mode", None)
        if mode is None or mode.is_aside:
            return None
        mode.is_aside = True
        return mode

    def _open(self) -> None:
        self.is_open = self._is_entered = True
        self._apply = BackwardCFunction.apply
        BackwardCFunction.__init__ = _wrap_init(self)  # type: ignore[method-assign]
        BackwardCFunction.apply = _wrap_apply(self._apply, self)  # type: ignore[method-assign]
        self._enter(threading.current_thread())

    def close(self) -> None:
        """Note nothing more, and write the rest."""
        if not self._is_entered:
            return
        self.is_open = self._is_entered = False
        del BackwardCFunction.__init__
        BackwardCFunction.apply = self._apply  # type: ignore[method-assign]
        if not _is_in_compiled_call():
            self._leave()
        self._flush()

    def observe_start(self, thread: threading.Thread) -> None:
        """A thread is about to be started."""
        with self._lock:
            self._numbers[thread] = self._num_threads
            self._num_threads += 1

    def observe_run(self, work: Any) -> Observation:
        """Have the mode on in this thread while it works, if the window is open and it is not on yet."""
        is_new = self.is_open and getattr(self._local, "mode", None) is None
        if is_new:
            self._enter(work if isinstance(work, threading.Thread) else threading.current_thread())
        try:
            yield
        finally:
            if is_new:
                self._leave()

    def observe_trace(self, /, *_: Any, **__: Any) -> Observation:
        """Have the mode off while a model is traced: torch's tracer loses what goes through a mode."""
        mode = getattr(self._local, "mode", None)
        self._leave()
        try:
            yield
        finally:
            if mode is not None and self._is_entered:
                self._push(mode)

    def _enter(self, thread: threading.Thread) -> None:
        if getattr(self._local, "mode", None) is not None:
            return  # it could not be taken off
        mode = Mode(self, self._number_of(thread))
        self._modes.append(mode)
        self._push(mode)

    def _push(self, mode: Mode) -> None:
        self._local.mode = mode
        above = _lift_modes()
        dispatch._push_mode(mode)  # lowest of all: it is not popped in the place of another one
        _put_modes(above)

    def _leave(self) -> None:
        mode = getattr(self._local, "mode", None)
        if mode is not None:
            self._local.mode = None
            _put_modes([other for other in _lift_modes() if other is not mode])

    def _leave_child(self) -> None:
        """In a forked process nothing is observed."""
        self.is_open = False
        self._lock = threading.RLock()
        self._leave()

    def _number_of(self, thread: threading.Thread) -> int:
        if thread is threading.main_thread():
            return 0
        if thread not in self._numbers:
            self.observe_start(thread)
        return self._numbers[thread]

    def begin(  # limits: private to this package
        self, mode: Mode, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Any], None] | None:
        """An operation is about to run: return what is told its result; None if it is not noted."""
        facts = self._facts.get(func) or self._facts_of(func)
        frame = frame_above(4, self._tape.under_way.thread)
        if facts.is_passed_by or self._is_left_out(mode, facts, frame):
            return None
        caller = self._look_up(mode, frame)
        if caller.is_ours:
            return None
        name, node = self._tables.text(facts.name), torch._C._current_autograd_node()
        # In a forward pass something is computed again, as it was not kept.
        origin = None
        if node is not None and caller.phase != _FORWARD:
            origin = self._origin_number(self._origin_of(mode, node._sequence_nr()))
            if self._is_repeated(name, origin, facts):
                return None
        given = gather(args, kwargs, facts=facts)
        has_node = torch.is_grad_enabled() and any(item.tensor.requires_grad for item in given)
        mode.claim_nodes((name, caller.site, caller.module), has_node=has_node)
        row = self._new_row(mode, caller, name, node=node, origin=origin)
        row.flags |= IS_UNINITIALISED * facts.is_uninitialised
        if facts.takes_generator:
            row.flags |= HAS_GENERATOR * (find_generator(args, kwargs) is not None)
        if origin is not None and self.is_light:
            given = [item for item in given if item.is_written]
        else:
            row.scalars, row.ins = scalars_of(args, kwargs), self._traces.read_ins(given)
        state = self.attempt(state_to_draw, args, kwargs) if facts.may_draw else None
        return partial(self._end, row, given, facts, state, args, kwargs)

    def _is_left_out(self, _mode: Mode, _facts: OperationSchema, _frame: Any) -> bool:
        """Whether an operation is not noted."""
        return False

    def _is_repeated(self, _name: int, _origin: int, _facts: OperationSchema) -> bool:
        """Whether one like it in the backward pass was noted, and that is enough."""
        return False

    def _facts_of(self, func: OpOverload) -> OperationSchema:
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = OperationSchema.of(func)
        return facts

    def _look_up(self, mode: Mode, frame: Any) -> Caller:
        with self._lock:
            return self._callers.look_up(frame, is_main=mode.thread == 0)

    def _new_row(  # limits: private to this class
        self, mode: Mode, caller: Caller, name: int, *, node: Any = None, origin: int | None = None
    ) -> Row:
        """Return what is known of an operation without its tensors; in a backward pass it has an origin."""
        row = Row(
            index=next(self._count),
            thread=mode.thread,
            step=self._tape.num_steps,
            name=name,
            site=caller.site,
            outer=caller.outer,
            phase=caller.phase if origin is None else _BACKWARD,
            module=caller.module,
            flags=caller.state,
        )
        if node is not None:
            row.node = self._tables.text(node.name().removeprefix("torch::autograd::"))
        if origin is not None:
            row.origin = origin
        return row

    def _origin_of(self, mode: Mode, node: int) -> tuple[int, int, int]:
        """Return what a node is the gradient of. Threads number their nodes each for itself."""
        for other in (mode, *self._modes):
            if node in other.origins:
                return other.origins[node]
        return _NOWHERE

    def _origin_number(self, origin: tuple[int, int, int]) -> int:
        name, site, module = origin
        return self._tables.origin(name, site, module=module)

    def _end(  # limits: private to this class
        self,
        row: Row,
        given: list[Given],
        facts: OperationSchema,
        state: bytes | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        if facts.may_draw and (state is None or state != state_to_draw(args, kwargs)):
            row.flags |= IS_RANDOM
        with self._lock:
            outs = self._traces.read_outs(row.index, given, results=tensors_in((result,)), facts=facts)
            if row.phase != _BACKWARD or not self.is_light:
                row.outs = outs
            self._keep(row)
        for reader in self._tape.readers_of(facts.name):
            self.attempt(reader, row.index, args, kwargs, result)

    def _keep(self, row: Row) -> None:
        with self._lock:
            self._rows.append(row)
            if len(self._rows) >= _BLOCK:
                self._flush()

    def _flush(self) -> None:
        with self._lock:
            rows, self._rows = self._rows, []
            self._traces.flush()
            if rows:
                self._tape.write("operations", **self._tables.take(), rows=[row.written() for row in rows])

    def attempt(self, act: Callable[..., Any], *args: Any) -> Any:
        """Do our own work: what goes wrong in it is written down and must not end the script."""
        try:
            with torch._C.DisableTorchFunction():
                return act(*args)
        except Exception as error:
            if is_from_handler(error):
                raise
            name = getattr(act, "func", act).__name__.strip("_")
            self._tape.note_trouble(f"{name} of an operation", error)
            return None

    def meet_function(self, function: Any) -> None:
        """The user's own autograd function is about to be called; its node has just been made."""
        mode = getattr(self._local, "mode", None)
        if mode is not None:
            caller = self._look_up(mode, frame_above(3, self._tape.under_way.thread))
            name = self._tables.text(type(function).__name__.removesuffix("Backward"))
            mode.claim_nodes((name, caller.site, caller.module), has_node=True)

    def note_function(self, function: Any, gradients: tuple[Any, ...], *, run: Function) -> Any:
        """Run the backward pass of the user's own autograd function and note it."""
        mode = getattr(self._local, "mode", None)
        row = None
        if mode is not None and self.is_open:
            row = self.attempt(self._begin_function, mode, function, gradients)
        result = run(function, *gradients)
        if row is not None:
            self.attempt(self._end_function, row, gradients, result)
        return result

    hide(note_function)

    def _begin_function(self, mode: Mode, function: Any, gradients: tuple[Any, ...]) -> Row:
        caller = self._look_up(mode, frame_above(3, self._tape.under_way.thread))
        origin = self._origin_of(mode, function._sequence_nr())
        name = self._tables.text(type(function).__name__)
        node = torch._C._current_autograd_node()
        row = self._new_row(mode, caller, name, node=node, origin=self._origin_number(origin))
        row.site = origin[1] or caller.site
        with _no_modes():
            row.ins = self._traces.read_ins(Given.read_only(gradients))
        return row

    def _end_function(self, row: Row, gradients: tuple[Any, ...], result: Any) -> None:
        with self._lock, _no_modes():
            given = Given.read_only(gradients)
            row.outs = self._traces.read_outs(row.index, given, results=tensors_in((result,)), facts=None)
        self._keep(row)


def drop_call(error: BaseException) -> None:
    """Take our frames from an error's traceback, and that of torch's call of an operation.

    Without a mode C++ calls the operation, not `OpOverload.__call__`.
    """
    drop_frames(error)
    trace = error.__traceback__
    if trace is not None and trace.tb_frame.f_code is OpOverload.__call__.__code__:
        error.__traceback__ = trace.tb_next


def _lift_modes() -> list[Any]:
    """Take all modes of this thread off; the lowest comes first."""
    modes = [dispatch._pop_mode() for _ in range(torch._C._len_torch_dispatch_stack())]
    return modes[::-1]


def _put_modes(modes: list[Any]) -> None:
    for mode in modes:
        dispatch._push_mode(mode)


@contextmanager
def _no_modes() -> Iterator[None]:
    modes = _lift_modes()
    try:
        yield
    finally:
        _put_modes(modes)


def _wrap_init(recorder: OperationRecorder) -> Function:
    def wrapper(self: Any) -> None:
        recorder.attempt(recorder.meet_function, self)

    hide(wrapper)
    return wrapper


def _wrap_apply(apply: Function, recorder: OperationRecorder) -> Function:
    def wrapper(self: Any, *gradients: Any) -> Any:
        try:
            return recorder.note_function(self, gradients, run=apply)
        except BaseException as error:
            drop_frames(error)
            raise

    hide(wrapper)
    return wrapper


HOOKS = (
    Hook("threading.Thread.start", OperationRecorder.observe_start),
    # A thread that asks for the current one before it has begun makes another: it is given itself.
    Hook("threading.Thread._bootstrap_inner", OperationRecorder.observe_run),
    Hook("concurrent.futures.thread._WorkItem.run", OperationRecorder.observe_run),
    Hook("torch.jit._trace.trace", OperationRecorder.observe_trace, also=("torch.jit.trace",)),
    Hook(
        "torch.jit._trace._get_trace_graph",
        OperationRecorder.observe_trace,
        also=("torch.jit._get_trace_graph",),
    ),
)
