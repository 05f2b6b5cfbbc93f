"""Steps of optimizers, `zero_grad`, clipping, and the unscaling of gradients.

Owns which step counts: several optimizers that take turns make one step together, and the first to come again
begins the next. A step that is made inside of another one is a part of it.
"""

from collections.abc import Callable, Iterator
from time import perf_counter_ns
from types import GeneratorType
from typing import Any

from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from truestep.watch.chain import Chain
from truestep.watch.seeds import Draws
from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame, guard

Function = Callable[..., Any]
_NUM_FIRST = 8


def watch(tape: Tape, chain: Chain | None, wraps: Wraps) -> None:  # limits: private to this package
    """Observe every optimizer: torch hooks the step of each class when the first of its kind is made."""
    steps = _Steps(tape, chain)
    wraps.put("_patch_step_function", lambda patch: _wrap_patch(patch, steps), Optimizer)
    wraps.put("zero_grad", lambda zero: _wrap_zero(zero, tape, "optimizer"), Optimizer)
    wraps.put("zero_grad", lambda zero: _wrap_zero(zero, tape, "model"), nn.Module)
    wraps.put("unscale_", lambda unscale: _wrap_unscale(unscale, tape), GradScaler)
    modules = (nn.utils.clip_grad, nn.utils)
    wraps.put("clip_grad_norm_", lambda clip: _wrap_clip(clip, tape, "norm"), *modules)
    wraps.put("clip_grad_value_", lambda clip: _wrap_clip(clip, tape, "value"), *modules)


class _Steps:
    """What all steps of a process share."""

    def __init__(self, tape: Tape, chain: Chain | None) -> None:
        self.tape = tape
        self.chain = chain
        self.draws = Draws(tape)
        self.is_inside = False
        self.known = tape.things("optimizer")
        self.met: set[int] = set()
        self.stepped: set[int] = set()
        """The optimizers that have made their part of this step."""
        self.rates: dict[int, list[Any]] = {}

    def begin(self, optimizer: Optimizer, has_closure: bool) -> tuple[Any, ...]:
        """Return the moment's key."""
        known = self.known.get(id(optimizer))
        number = self.tape.number("optimizer", optimizer) if known is None else known[0]
        if number not in self.met:
            self.met.add(number)
            sizes = [len(group["params"]) for group in optimizer.param_groups]
            self.tape.note("optimizer", number, type(optimizer).__qualname__, len(sizes), sum(sizes))
        counts = number in self.stepped or self._are_gone()
        if counts:
            self.stepped.clear()
        self.stepped.add(number)
        if self.chain is not None:
            self.chain.take_before(optimizer, number, has_closure=has_closure)
            if not has_closure:
                self.chain.take_gradients(optimizer)
        return ("step", self.tape.sites.here(3), number, has_closure, counts)

    def _are_gone(self) -> bool:
        """Whether none is left to go on: a script may make a new one for each task."""
        return all(-number - 1 in self.known for number in self.stepped)

    def end(self, optimizer: Optimizer, key: tuple[Any, ...], begun_ns: int) -> None:
        """Note the step and count it."""
        number, has_closure, counts = key[2:]
        rates = [group.get("lr") for group in optimizer.param_groups]
        changed = None
        if rates != self.rates.get(number):
            self.rates[number] = rates
            changed = rates if all(isinstance(rate, int | float) for rate in rates) else None
        self.tape.mark(key, begun_ns, value=changed)
        if self.chain is not None:
            if has_closure:
                self.chain.take_gradients(optimizer)
            self.chain.close_update(optimizer, number, site=key[1])
        if counts:
            if self.tape.num_steps >= self.draws.next_step:
                self.draws.look(self.tape.num_steps)
            self.tape.count_step()


def _wrap_patch(patch: Function, steps: _Steps) -> Function:
    def wrapper(self: Any) -> Any:
        try:
            result = patch(self)
        except BaseException as error:
            drop_frame(error)
            raise
        kind = type(self)
        if not getattr(kind.step, "is_watched", False):
            step = kind.step
            kind.step = guard(_wrap_step(step, steps), step, where=f"{kind.__name__}.step", tape=steps.tape)
            kind.step.is_watched = True
        return result

    return wrapper


def _wrap_step(step: Function, steps: _Steps) -> Function:
    tape = steps.tape
    begins, ends = tape.listeners["step_begins"], tape.listeners["step_ends"]

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if steps.is_inside or not tape.is_on:
            try:
                return step(self, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
        if tape.is_over:
            tape.end_script()
        closure = args[0] if args else kwargs.get("closure")
        key = steps.begin(self, closure is not None)
        tape.is_stepping = closure is None
        if begins:
            tape.tell("step_begins", self, key[2])
        steps.is_inside = True
        begun = perf_counter_ns()
        try:
            result = step(self, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            steps.is_inside = tape.is_stepping = False
        if ends:
            tape.tell("step_ends", self, key[2])
        steps.end(self, key, begun)
        return result

    return wrapper


def _wrap_zero(zero: Function, tape: Tape, kind: str) -> Function:
    sites = tape.sites

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tape.is_inside or not tape.is_on:
            try:
                return zero(self, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
        if tape.is_over:
            tape.end_script()
        number = tape.number(kind, self)
        to_none = bool(args[0] if args else kwargs.get("set_to_none", True))
        numbers = (number, None) if kind == "optimizer" else (None, number)
        key = ("zero_grad", sites.here(), *numbers, to_none)
        tape.tell("zero_begins", self)
        begun = perf_counter_ns()
        try:
            result = zero(self, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        tape.mark(key, begun)
        tape.tell("zero_ends", self)
        return result

    return wrapper


def _wrap_clip(clip: Function, tape: Tape, how: str) -> Function:
    sites = tape.sites

    def wrapper(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not tape.is_on:
            try:
                return clip(parameters, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
        counted = _Counted(parameters) if isinstance(parameters, Iterator) else None
        limit = args[0] if args else kwargs.get("max_norm", kwargs.get("clip_value"))
        limit = float(limit) if isinstance(limit, int | float) else None
        site = sites.here()
        tape.tell("clip_begins", None if counted else parameters)
        begun = perf_counter_ns()
        try:
            result = clip(counted.items() if counted else parameters, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        num = len(parameters) if isinstance(parameters, list | tuple) else None
        if counted is not None:
            num = counted.num
        tape.mark(("clip", site, how, limit, num), begun, value="iterator" if counted and not num else None)
        tape.tell("clip_ends", counted.first if counted else parameters, limit, result)
        return result

    return wrapper


class _Counted:
    """Hands on what an iterator gives, and counts it: an exhausted one has nothing to clip."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source
        self.num = 0
        self.first: list[Any] = []

    def items(self) -> Iterator[Any]:
        """Return a generator for a generator: torch warns of no other that is empty."""
        if type(self._source) is not GeneratorType:
            return map(self._see, self._source)
        return (self._see(item) for item in self._source)

    def _see(self, item: Any) -> Any:
        self.num += 1
        if self.num <= _NUM_FIRST:
            self.first.append(item)
        return item


def _wrap_unscale(unscale: Function, tape: Tape) -> Function:
    def wrapper(self: Any, optimizer: Any) -> Any:
        if tape.is_on:
            tape.note("unscale", tape.number("optimizer", optimizer))
            tape.tell("unscale_begins", self, optimizer)
        try:
            result = unscale(self, optimizer)
        except BaseException as error:
            drop_frame(error)
            raise
        if tape.is_on:
            tape.tell("unscale_ends", self, optimizer)
        return result

    return wrapper
