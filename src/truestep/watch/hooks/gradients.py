"""What is done to gradients between a backward pass and a step: `zero_grad`, clipping, unscaling."""

from collections.abc import Iterator
from itertools import chain, islice
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

    def observe_clip(self, how: str, /, *args: Any, **kwargs: Any) -> Observation:
        """Observe clipping, and whether an iterator of parameters gives any."""
        tape = self._tape
        parameters = args[0] if args else kwargs.get("parameters")
        first = None  # of an iterator, which nobody else may read to its end
        if args and isinstance(parameters, Iterator):
            first = [*islice(parameters, _NUM_FIRST)]
            args = (_both(first, parameters), *args[1:])
        limit = args[1] if len(args) > 1 else kwargs.get("max_norm", kwargs.get("clip_value"))
        limit = float(limit) if isinstance(limit, int | float) else None
        site = tape.sites.here(3)
        begun = perf_counter_ns()
        result = yield args
        tape.mark(ClippingCalled(how, first == []), site, begun)
        tape.emit("clip_ends", parameters if first is None else first, limit, result)

    def observe_unscale(self, scaler: Any, optimizer: Any) -> Observation:
        """Observe the unscaling of gradients."""
        self._tape.note(GradientsUnscaled(self._tape.number("optimizer", optimizer)))
        self._tape.emit("unscale_begins", scaler, optimizer)
        yield
        self._tape.emit("unscale_ends", scaler, optimizer)


def _both(first: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
    """Return an iterator over both; a generator for a generator: torch warns of no other that is empty."""
    items = chain(first, rest)
    return (item for item in items) if type(rest) is GeneratorType else items
