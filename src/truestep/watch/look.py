"""The look: every operation of torch in a window of steps, with digests of what went in and came out.

Owns the mode that sees operations, in which threads it is on and when. Reads and never writes. Who called is
in `callers`, what is kept in `traces`.
"""

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import thread as pools
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo.eval_frame import set_eval_frame
from torch._ops import OpOverload
from torch.autograd.function import BackwardCFunction
from torch.utils import _python_dispatch as dispatch

from truestep.watch.callers import Caller, Callers
from truestep.watch.evidence import HAS_GENERATOR, IS_RANDOM, IS_UNINITIALISED, PHASES
from truestep.watch.tape import Tape
from truestep.watch.traces import (
    Call,
    Facts,
    Given,
    Tables,
    Traces,
    draws_from,
    find_generator,
    gather,
    scalars_of,
    tensors_in,
)
from truestep.watch.wrap import UNSEEN, Wraps, drop_frame

Function = Callable[..., Any]
_BLOCK = 512
_MAX_NEW_NODES = 64
_FORWARD, _BACKWARD = PHASES.index("forward"), PHASES.index("backward")
_NOWHERE = (0, 0, 0)
_MAX_VISITS = 2
_MAX_PER_STEP = 4096
_MAX_PER_PLACE = 128


def watch(tape: Tape, wraps: Wraps) -> None:
    """Note operations in the steps that the plan names."""
    if tape.plan.operations is not None:
        tape.look = look = Look(tape)
        wraps.put("start", lambda start: _wrap_start(start, look), threading.Thread)
        wraps.put("_bootstrap_inner", lambda run: _wrap_thread(run, look), threading.Thread)
        wraps.put("run", lambda run: _wrap_work(run, look), pools._WorkItem)
        if look.is_light:
            tape.listeners["forward_begins"].append(look.meet_forward)
            tape.listeners["forward_ends"].append(look.leave_forward)
            tape.listeners["backward_begins"].append(look.resume)
        look.move(tape.num_steps)


class _Mode(dispatch.TorchDispatchMode):
    """Sees the operations of one thread, below autograd and below modes of the user's."""

    supports_higher_order_operators = True

    def __init__(self, look: "Look", thread: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.look = look
        self.thread = thread
        self.origins: dict[int, tuple[int, int, int]] = {}
        """By the number that autograd gives to a node: name, line and module of what it belongs to."""
        self._last_node = _num_nodes()
        self._last_origin = _NOWHERE

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or else the compiler would be imported for it; `set_eval_frame` does the same

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # bits: otherwise what is compiled would quietly run uncompiled

    def __torch_dispatch__(  # limits: torch calls it like this
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        look = self.look
        try:
            # A mode below this one is one of the compiler's: nothing is computed, or not yet.
            if not look.is_open or not isinstance(func, OpOverload) or torch._C._len_torch_dispatch_stack():
                return func(*args, **(kwargs or {}))
            if any(kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ for kind in types):
                return NotImplemented  # a subclass does it by operations on plain tensors, which come here
            compiler = set_eval_frame(None)
            try:
                if look.is_light and look.is_crowd(self, func):
                    return look.pass_by(func, args, kwargs or {})
                return look.note(self, func, args, kwargs or {})
            finally:
                set_eval_frame(compiler)
        except BaseException as error:
            drop_frame(error)
            raise

    __torch_dispatch__.__code__ = __torch_dispatch__.__code__.replace(co_filename=UNSEEN)

    def claim_nodes(self, origin: tuple[int, int, int], *, has_node: bool) -> None:
        """Say which operation the nodes belong to that autograd has made since the last one.

        A node is made before its operation is called. Others, as for a changed view, are made after it.
        """
        last = _num_nodes()
        for node in range(max(self._last_node, last - _MAX_NEW_NODES), last):
            is_own = has_node and node == last - 1
            self.origins.setdefault(node, origin if is_own else self._last_origin)
        self._last_node = last
        self._last_origin = origin


def _num_nodes() -> int:
    """Return how many nodes autograd has made in this thread."""
    return int(torch._C._autograd._get_sequence_nr())


class _Windows:
    """When a light look is on beyond its first steps: who comes later is looked at too."""

    def __init__(self) -> None:
        self._met: set[int] = set()
        self._num_visits: dict[int, int] = {}
        self.is_visit = False
        """Whether it is on for one forward pass in evaluation."""
        self.num_noted = 0

    def meet(self, number: int) -> None:
        """An outermost module is called while the look is on."""
        self._met.add(number)

    def opens_for(self, number: int, *, is_training: bool) -> bool:
        """Whether it goes on for a call of the module: the first in training, or one of the first not."""
        if is_training:
            is_new = number not in self._met
            self._met.add(number)
            return is_new
        num = self._num_visits[number] = self._num_visits.get(number, 0) + 1
        self.is_visit = num <= _MAX_VISITS
        return self.is_visit


class _Place:
    """An operation that one place of the user's own code calls, in one step."""

    def __init__(self, code: Any, name: str) -> None:
        self.code = code  # kept, so that no other code gets its id
        self.name = name
        self.site = 0
        self.num_calls = 0
        self.num_single = 0
        self.took_ns = 0


class Look:
    """The operations of a process."""

    def __init__(self, tape: Tape) -> None:
        assert tape.plan.operations is not None
        self._tape = tape
        self._first, self._last = tape.plan.operations
        self.is_open = False
        """Whether operations are noted."""
        self._is_entered = False
        """Whether the mode is on; it is also while nothing is noted, since a step has too many."""
        self.is_light = tape.plan.inspect and tape.plan.bits == "none"
        """Whether only what rules read is kept: no bits, and not all of what comes thousands of times."""
        self._tables = Tables()
        self._callers = Callers(self._tables, tape.sites.is_own, has_states=self.is_light)
        self._windows = _Windows()
        self._places: dict[tuple[int, int, int], _Place] = {}
        self._place = _Place(None, "")
        self._traces = Traces(Path(tape.path), self._tables, bits=tape.plan.bits)
        self._facts: dict[OpOverload, Facts] = {}
        self._count = itertools.count()
        self._rows: list[list[Any]] = []
        self._lock = threading.RLock()
        self._local = threading.local()
        self._modes: list[_Mode] = []
        self._num_threads = 1
        self._troubles: set[str] = set()
        os.register_at_fork(after_in_child=self._leave_child)

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
        if self._places:
            self._tell_places()
        self._windows.num_noted = 0

    def meet_forward(  # limits: the tape calls it like this
        self, module: Any, _args: Any, _kwargs: Any
    ) -> None:
        """An outermost module is called: begin to note, if it is one that was not seen like this yet."""
        if self._windows.is_visit:  # the last one did not return
            self.close()
        self.resume()
        if self._is_entered:
            self._windows.meet(self._tape.number("model", module))
        elif self._windows.opens_for(self._tape.number("model", module), is_training=module.training):
            self._windows.num_noted = 0
            self._open()

    def resume(self, *_: Any) -> None:
        """Training begins, after a setup that was too much; or it goes on, and is too much itself."""
        if self._is_entered and not self.is_open:
            if self._callers.is_setup:
                self.is_open = True
                self._windows.num_noted = 0
            else:
                self.close()

    def leave_forward(self, module: Any, *_: Any) -> None:
        """It has returned."""
        if self._windows.is_visit and not module.training:
            self.close()

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
        self.is_open = self._is_entered = self._windows.is_visit = False
        del BackwardCFunction.__init__
        BackwardCFunction.apply = self._apply  # type: ignore[method-assign]
        self._leave()
        self._flush()

    def number_thread(self, thread: threading.Thread) -> None:
        """A thread is about to be started."""
        with self._lock:
            thread._truestep_number = self._num_threads  # type: ignore[attr-defined]
            self._num_threads += 1

    @contextmanager
    def inside(self, thread: threading.Thread) -> Iterator[None]:
        """Have the mode on in this thread while the window is open."""
        is_new = self.is_open and getattr(self._local, "mode", None) is None
        if is_new:
            self._enter(thread)
        try:
            yield
        finally:
            if is_new:
                self._leave()

    def _enter(self, thread: threading.Thread) -> None:
        mode = self._local.mode = _Mode(self, self._number_of(thread))
        self._modes.append(mode)
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
        if not hasattr(thread, "_truestep_number"):
            self.number_thread(thread)
        return int(thread._truestep_number)  # type: ignore[attr-defined]

    def is_crowd(self, mode: _Mode, func: OpOverload) -> bool:
        """Whether the place that calls, if it is the user's own, has called this too often in this step."""
        frame = sys._getframe(2)
        code = frame.f_code
        if mode.thread or not self._tape.sites.is_own(code.co_filename):
            return False
        key = (id(code), frame.f_lasti, id(func))
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _Place(code, str(func))
        place.num_calls += 1
        if place.num_calls == _MAX_PER_PLACE:
            place.site = self._tape.sites.here(2)
        self._place = place
        return place.num_calls > _MAX_PER_PLACE

    def pass_by(  # limits: private to this package
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an operation of a crowd: it is timed, and no more."""
        place = self._place
        begun = perf_counter_ns()
        result = func(*args, **kwargs)
        place.took_ns += perf_counter_ns() - begun
        place.num_single += type(result) is not Tensor or result.numel() == 1
        return result

    def _tell_places(self) -> None:
        """Note what was called too often to be noted one by one, with the time that it took."""
        places, self._places = self._places, {}
        for place in places.values():
            if place.num_calls > _MAX_PER_PLACE:
                timed = place.num_calls - _MAX_PER_PLACE
                value = {
                    "calls": place.num_calls,
                    "single": place.num_single / timed,
                    "took_s": place.took_ns / timed * place.num_calls / 1e9,
                }
                self._tape.mark(("crowd", place.site, place.name), perf_counter_ns(), value=value)

    def note(  # limits: private to this module
        self, mode: _Mode, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an operation and note it."""
        begun = self._try(self._begin, mode, func, args, kwargs)
        if begun is None:
            return func(*args, **kwargs)
        call, given, facts = begun
        source: Any = self._try(draws_from, args, kwargs) if facts.may_draw else None
        before = None if source is None else self._try(source.state)
        result = func(*args, **kwargs)
        if facts.may_draw and (before is None or self._try(source.state) != before):
            call.flags |= IS_RANDOM
        self._try(self._end, call, given, tensors_in((result,)), facts)
        if self.is_light:
            self._count_noted()
            reader = self._tape.readers.get(facts.name)
            if reader is not None:
                self._try(reader, call.index, args, kwargs, result)
        return result

    def _count_noted(self) -> None:
        self._windows.num_noted += 1
        if self._windows.num_noted >= _MAX_PER_STEP:
            self.is_open = False  # until the next step, or the first forward pass

    def _begin(
        self, mode: _Mode, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Call, list[Given], Facts] | None:
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = Facts.of(func)
        if facts.is_passed_by:
            return None
        given = gather(args, kwargs, facts=facts)
        caller = self._look_up(mode, sys._getframe(4))
        if caller.is_ours:
            return None
        name = self._tables.text(facts.name)
        has_node = torch.is_grad_enabled() and any(item.tensor.requires_grad for item in given)
        mode.claim_nodes((name, caller.site, caller.module), has_node=has_node)
        call = self._new_call(mode, caller, name)
        call.scalars = scalars_of(args, kwargs)
        call.flags = IS_UNINITIALISED * facts.is_uninitialised
        call.flags |= HAS_GENERATOR * (find_generator(args, kwargs) is not None)
        call.flags |= caller.state
        call.ins = self._traces.read_ins(given)
        return call, given, facts

    def _look_up(self, mode: _Mode, frame: Any) -> Caller:
        with self._lock:
            return self._callers.look_up(frame, is_main=mode.thread == 0)

    def _new_call(self, mode: _Mode, caller: Caller, name: int) -> Call:
        node: Any = torch._C._current_autograd_node()
        phase, origin, node_name = caller.phase, 0, 0
        if node is not None:
            node_name = self._tables.text(node.name().removeprefix("torch::autograd::"))
            if phase != _FORWARD:  # otherwise it is computed again, as it was not kept
                phase = _BACKWARD
                origin = self._origin_number(self._origin_of(mode, node._sequence_nr()))
        return Call(
            index=next(self._count),
            thread=mode.thread,
            step=self._tape.num_steps,
            name=name,
            site=caller.site,
            outer=caller.outer,
            phase=phase,
            module=caller.module,
            origin=origin,
            node=node_name,
        )

    def _origin_of(self, mode: _Mode, node: int) -> tuple[int, int, int]:
        """Return what a node is the gradient of. Threads number their nodes each for itself."""
        for other in (mode, *self._modes):
            if node in other.origins:
                return other.origins[node]
        return _NOWHERE

    def _origin_number(self, origin: tuple[int, int, int]) -> int:
        name, site, module = origin
        return self._tables.origin(name, site, module=module)

    def _end(self, call: Call, given: list[Given], results: list[Tensor], facts: Facts) -> None:
        with self._lock:
            call.outs = self._traces.read_outs(call.index, given, results=results, facts=facts)
        self._keep(call)

    def _keep(self, call: Call) -> None:
        with self._lock:
            self._rows.append(call.as_row())
            if len(self._rows) >= _BLOCK:
                self._flush()

    def _flush(self) -> None:
        with self._lock:
            rows, self._rows = self._rows, []
            self._traces.flush()
            if rows:
                self._tape.write("operations", **self._tables.take(), rows=rows)

    def _try(self, act: Callable[..., Any], *args: Any) -> Any:
        """Do our own work: what goes wrong in it is written down and must not end the script."""
        try:
            with torch._C.DisableTorchFunction():
                return act(*args)
        except Exception as error:  # noqa: BLE001 - written down
            text = f"{act.__name__.strip('_')} of an operation: {type(error).__name__}: {error}"
            if text not in self._troubles:
                self._troubles.add(text)
                self._tape.write("trouble", error=text)
            return None

    def meet_function(self, function: Any) -> None:
        """The user's own autograd function is about to be called; its node has just been made."""
        mode = getattr(self._local, "mode", None)
        if mode is not None:
            caller = self._look_up(mode, sys._getframe(3))
            name = self._tables.text(type(function).__name__.removesuffix("Backward"))
            mode.claim_nodes((name, caller.site, caller.module), has_node=True)

    def note_function(self, function: Any, gradients: tuple[Any, ...], *, run: Function) -> Any:
        """Run the backward pass of the user's own autograd function and note it."""
        mode = getattr(self._local, "mode", None)
        if mode is None or not self.is_open:
            return run(function, *gradients)
        call = self._try(self._begin_function, mode, function, gradients)
        result = run(function, *gradients)
        if call is not None:
            self._try(self._end_function, call, gradients, result)
        return result

    def _begin_function(self, mode: _Mode, function: Any, gradients: tuple[Any, ...]) -> Call:
        caller = self._look_up(mode, sys._getframe(3))
        call = self._new_call(mode, caller, self._tables.text(type(function).__name__))
        origin = self._origin_of(mode, function._sequence_nr())
        call.phase = _BACKWARD
        call.origin = self._origin_number(origin)
        call.site = origin[1] or caller.site
        with _no_modes():
            call.ins = self._traces.read_ins(Given.read_only(gradients))
        return call

    def _end_function(self, call: Call, gradients: tuple[Any, ...], result: Any) -> None:
        with self._lock, _no_modes():
            given = Given.read_only(gradients)
            call.outs = self._traces.read_outs(call.index, given, results=tensors_in((result,)), facts=None)
        self._keep(call)


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


def _wrap_start(start: Function, look: Look) -> Function:
    def wrapper(self: Any) -> Any:
        look.number_thread(self)
        try:
            return start(self)
        except BaseException as error:
            drop_frame(error)
            raise

    return wrapper


def _wrap_thread(run: Function, look: Look) -> Function:
    def wrapper(self: threading.Thread) -> Any:
        with look.inside(self):  # who asks for the current thread before it has begun makes another one
            return run(self)

    return wrapper


def _wrap_work(run: Function, look: Look) -> Function:
    def wrapper(self: Any) -> Any:
        with look.inside(threading.current_thread()):
            return run(self)

    return wrapper


def _wrap_init(look: Look) -> Function:
    def wrapper(self: Any) -> None:
        look._try(look.meet_function, self)

    wrapper.__code__ = wrapper.__code__.replace(co_filename=UNSEEN)
    return wrapper


def _wrap_apply(apply: Function, look: Look) -> Function:
    def wrapper(self: Any, *gradients: Any) -> Any:
        try:
            return look.note_function(self, gradients, run=apply)
        except BaseException as error:
            drop_frame(error)
            raise

    wrapper.__code__ = wrapper.__code__.replace(co_filename=UNSEEN)
    return wrapper
