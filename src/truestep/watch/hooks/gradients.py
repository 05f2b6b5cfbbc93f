"""What is done to gradients between a backward pass and a step: `zero_grad`, clipping, unscaling."""

from collections.abc import Iterator
from itertools import chain, count, islice
from operator import itemgetter
from time import perf_counter_ns
from types import GeneratorType
from typing import Any

from truestep.watch.evidence.facts.optimizing import (
    ClippingCalled,
    GradientsUnscaled,
    GradientsZeroed,
)
from truestep.watch.hooks.table import Observation
from truestep.watch.script.tape import Tape

_NUM_FIRST = 8


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
