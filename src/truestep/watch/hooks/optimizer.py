"""Steps of optimizers, `zero_grad`, clipping, and the unscaling of gradients.

Owns which step counts: several optimizers that take turns make one step together, and the first to come again
begins the next. A step that is made inside of another one is a part of it.
"""

from collections.abc import Iterator
from itertools import chain, count, islice
from operator import itemgetter
from time import perf_counter_ns
from types import GeneratorType
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from truestep.watch.evidence.facts.optimizing import (
    ClippingCalled,
    GradientsUnscaled,
    GradientsZeroed,
    OptimizerStep,
)
from truestep.watch.hooks.counting import Counter
from truestep.watch.hooks.table import WINDOW, Guard, Hook, Observation, hide, observing, when_removed
from truestep.watch.script.tape import Tape
from truestep.watch.script.under_way import CALLS, STEPS

_NUM_FIRST = 8


class Turns:
    """Which step begins the next step of training: optimizers that take turns make one together."""

    def __init__(self, known: dict[int, tuple[int, Any]]) -> None:
        self._known = known
        self._taken: set[int] = set()
        """The optimizers that have made their part of this step."""

    def take(self, number: int) -> bool:
        """An optimizer makes a step: return whether it begins the next."""
        counts = number in self._taken or self._are_gone()
        if counts:
            self._taken.clear()
        self._taken.add(number)
        return counts

    def _are_gone(self) -> bool:
        """Whether none is left to go on: a script may make a new one for each task."""
        return all(-number - 1 in self._known for number in self._taken)


class Steps:
    """Every optimizer: torch hooks the step of each class when the first of its kind is made."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._chain = tape.chain
        self._is_inside = False
        self._known = tape.things("optimizer")
        self._turns = Turns(self._known)
        self._rates: dict[int, list[Any]] = {}
        self._counter = (
            Counter(tape, take_turn=self._turns.take, rates=self._rates, changed_rates=self._changed_rates)
            if tape.window.may_close
            else None
        )

    def meet(self, optimizer: Optimizer) -> Observation:
        """Observe the steps of a class of optimizers from here on."""
        yield
        kind: Any = type(optimizer)
        if not getattr(kind.step, "is_watched", False):
            hook = Hook(f"{kind.__qualname__}.step", Steps.observe, rank=STEPS)
            hide(hook.act)
            observed = observing(self.observe, kind.step, hook, tape=self._tape)
            kind.step = self._counter.around(kind.step, observed) if self._counter else observed
            kind.step.is_watched = True

    def observe(self, optimizer: Optimizer, /, *args: Any, **kwargs: Any) -> Observation:
        """Observe a step."""
        if self._is_inside:
            return
        tape = self._tape
        tape.open_window()  # another thread trains from here on
        tape.end_if_over()
        closure = args[0] if args else kwargs.get("closure")
        has_closure = closure is not None
        number, counts = self._begin(optimizer, has_closure)
        site = tape.sites.here(3)
        tape.under_way.begin_step(has_closure=has_closure)
        tape.emit("step_begins", optimizer, number)
        self._is_inside = True
        begun = perf_counter_ns()
        try:
            yield
        finally:
            self._is_inside = False
            tape.under_way.end_step()
        tape.emit("step_ends", optimizer, number)
        rates = self._changed_rates(optimizer, number)
        facts = OptimizerStep(number, has_closure, counts, rates)
        tape.mark(facts, site, begun)
        self._end(optimizer, number, site=site, has_closure=has_closure)
        if counts:
            tape.count_step()
        if self._counter is not None:
            self._counter.end_step(facts, site)

    def _begin(self, optimizer: Optimizer, has_closure: bool) -> tuple[int, bool]:
        """Return the optimizer's number, and whether it begins the next step."""
        known = self._known.get(id(optimizer))
        number = self._tape.number("optimizer", optimizer) if known is None else known[0]
        counts = self._turns.take(number)
        if self._chain is not None:
            self._chain.take_before(optimizer, number, has_closure=has_closure)
            if not has_closure:
                self._chain.take_gradients(optimizer)
        return number, counts

    def _changed_rates(self, optimizer: Optimizer, number: int) -> list[float] | None:
        rates: list[Any] = [group.get("lr") for group in optimizer.param_groups]
        if rates == self._rates.get(number):
            return None
        self._rates[number] = rates
        return rates if all(isinstance(rate, int | float) for rate in rates) else None

    def _end(self, optimizer: Optimizer, number: int, *, site: int, has_closure: bool) -> None:
        if self._chain is not None:
            if has_closure:
                self._chain.take_gradients(optimizer)
            self._chain.close_update(optimizer, number, site=site)


def watch_all_steps(tape: Tape) -> None:
    """Observe the steps of all optimizers, also of those that were made before.

    By torch's own hooks: a scheduler keeps the step of the optimizer that it was made for.
    """
    steps = _HookedSteps(tape)
    when_removed(register_optimizer_step_pre_hook(steps.begin).remove)
    when_removed(register_optimizer_step_post_hook(steps.end).remove)


class _HookedSteps:
    """Calls an observer before a step and after it. What a step raises is not seen."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._guard = Guard(tape, "torch.optim.Optimizer.step")
        self._steps = Steps(tape)
        self._pending: tuple[Optimizer, Any] | None = None

    def begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """A step begins."""
        if not self._tape.is_on or not self._guard.is_working:
            return
        if self._pending is not None and self._pending[0] is optimizer:
            self._close()  # the last one has raised
        if self._pending is None and self._tape.under_way.enter(STEPS):
            pending = self._steps.observe(*args, **kwargs)
            self._pending = (optimizer, pending)
            try:
                pending.send(None)
            except Exception as error:  # noqa: BLE001 - reported
                self._pending = None
                self._guard.fail(error)
                self._tape.under_way.leave()

    def end(self, optimizer: Optimizer, *_: Any) -> None:
        """It has been made."""
        if self._pending is not None and self._pending[0] is optimizer:
            pending, self._pending = self._pending[1], None
            self._guard.end(pending, None)
            self._tape.under_way.leave()

    def _close(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending[1], None
            self._guard.close(pending)
            self._tape.under_way.leave()


for _act in (_HookedSteps.begin, _HookedSteps.end):
    hide(_act)


class Gradients:
    """What is done to gradients between a backward pass and a step."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def observe_zero(self, kind: str, owner: Any, /, *args: Any, **kwargs: Any) -> Observation:
        """Observe `zero_grad` of an optimizer or a model."""
        tape = self._tape
        keeps = not (args[0] if args else kwargs.get("set_to_none", True))
        tape.end_if_over()
        number = tape.number(kind, owner)
        is_optimizer = kind == "optimizer"
        facts = GradientsZeroed(number if is_optimizer else None, None if is_optimizer else number)
        site = tape.sites.here(3)
        tape.emit("zero_begins", owner, keeps)
        begun = perf_counter_ns()
        yield
        tape.mark(facts, site, begun)
        tape.emit("zero_ends", owner)

    def observe_clip(self, how: str, /, *args: Any, **kwargs: Any) -> Observation:
        """Observe clipping, and count what an iterator of parameters gives."""
        tape = self._tape
        parameters = args[0] if args else kwargs.get("parameters")
        counted = _Counted(parameters) if args and isinstance(parameters, Iterator) else None
        limit = args[1] if len(args) > 1 else kwargs.get("max_norm", kwargs.get("clip_value"))
        limit = float(limit) if isinstance(limit, int | float) else None
        site = tape.sites.here(3)
        tape.emit("clip_begins", None if counted else parameters)
        begun = perf_counter_ns()
        result = yield (counted.items(), *args[1:]) if counted else None
        num = len(parameters) if isinstance(parameters, list | tuple) else None
        if counted is not None:
            num = counted.take_number()
        tape.mark(ClippingCalled(how, limit, num, counted is not None and not num), site, begun)
        tape.emit("clip_ends", counted.first if counted else parameters, limit, result)

    def observe_unscale(self, scaler: Any, optimizer: Any) -> Observation:
        """Observe the unscaling of gradients."""
        self._tape.note(GradientsUnscaled(self._tape.number("optimizer", optimizer)))
        self._tape.emit("unscale_begins", scaler, optimizer)
        yield
        self._tape.emit("unscale_ends", scaler, optimizer)


MADE = (Hook("torch.optim.Optimizer._patch_step_function", Steps.meet),)
GRADIENTS = (
    Hook(
        "torch.optim.Optimizer.zero_grad",
        Gradients.observe_zero,
        given=("optimizer",),
        is_outermost=True,
        rank=CALLS,
        when=WINDOW,
    ),
    Hook(
        "torch.nn.Module.zero_grad",
        Gradients.observe_zero,
        given=("model",),
        is_outermost=True,
        rank=CALLS,
        when=WINDOW,
    ),
    Hook("torch.amp.GradScaler.unscale_", Gradients.observe_unscale, rank=CALLS, when=WINDOW),
    *(
        Hook(
            f"torch.nn.utils.clip_grad.clip_grad_{how}_",
            Gradients.observe_clip,
            also=(f"torch.nn.utils.clip_grad_{how}_",),
            given=(how,),
            rank=CALLS,
            when=WINDOW,
        )
        for how in ("norm", "value")
    ),
)


class _Counted:
    """Hands on what an iterator gives, and counts it: an exhausted one has nothing to clip."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source
        self._others = count()
        self.first: list[Any] = []

    def items(self) -> Iterator[Any]:
        """Return a generator for a generator: torch warns of no other that is empty."""
        # Only the first few pass through code in Python: this happens at every step.
        first = map(self._keep, islice(self._source, _NUM_FIRST))
        items = chain(first, map(itemgetter(0), zip(self._source, self._others, strict=False)))
        return _generate(items) if type(self._source) is GeneratorType else items

    def _keep(self, item: Any) -> Any:
        self.first.append(item)
        return item

    def take_number(self) -> int:
        """Return how many there were. To be asked once, at the end."""
        return len(self.first) + next(self._others)


def _generate(items: Iterator[Any]) -> Iterator[Any]:
    yield from items
