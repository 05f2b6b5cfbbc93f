"""First draws from Python's and NumPy's global generators, as long as nobody has seeded them.

Owns the lines that draw from an unseeded generator. Once it is seeded, or enough was seen, a draw costs one
call.
"""

from time import perf_counter_ns
from typing import Any

from truestep.watch.evidence.facts.surroundings import NumbersDrawn
from truestep.watch.hooks.sources import draws_of
from truestep.watch.hooks.table import Hook, Observation, put
from truestep.watch.script.tape import Tape

_MAX_NOTED = 12


class _Draws:
    """What is known of one global generator."""

    def __init__(self, tape: Tape, name: str) -> None:
        self._tape = tape
        self._name = name
        self._is_open = True
        self._num_noted = 0

    def observe(self, function: str, /, *args: Any, **_: Any) -> Observation | None:
        """Observe a draw."""
        return self._observe(function, args) if self._is_open else None

    def _observe(self, function: str, args: tuple[Any, ...]) -> Observation:
        result = yield
        place = self._tape.sites.reached() or self._tape.sites.reached_library()
        if place is None:
            return
        site, library = place
        self._num_noted += 1
        self._is_open = self._num_noted < _MAX_NOTED
        drawn = args[0] if result is None and args else result
        size = getattr(drawn, "size", None)
        if not isinstance(size, int):
            size = len(drawn) if isinstance(drawn, list | tuple) else 1
        number = drawn if type(drawn) is int else None
        kind = getattr(getattr(drawn, "dtype", None), "kind", "")
        if drawn is not None and size == 1 and kind in ("i", "u"):
            number = int(drawn.item())
        self._tape.mark(NumbersDrawn(self._name, function, size, number, library), site, perf_counter_ns())

    def close(self, /, *_: Any, **__: Any) -> None:
        """Somebody seeds it."""
        self._is_open = False

    def observe_fresh(self, _generator: Any, /, *args: Any, **kwargs: Any) -> None:
        """Note generators that the user's own lines make without a seed: `random.Random()`."""
        if next(iter((*args, *kwargs.values())), None) is None:
            place = self._tape.sites.reached(frozenset({"random"}))
            if place is not None and (place[1] or "").endswith("Random.__init__"):
                facts = NumbersDrawn("random.Random", "fresh", 0, None)
                self._tape.mark(facts, place[0], perf_counter_ns())


def watch_random(tape: Tape) -> None:
    """Observe the global generator of `random`."""
    if tape.plan.inspect:
        draws = _put(tape, "random", ("seed", "setstate"))
        put(tape, [Hook("random.Random.seed", _Draws.observe_fresh)], draws)


def watch_numpy(tape: Tape) -> None:
    """Observe the global generator of NumPy."""
    if tape.plan.inspect:
        _put(tape, "numpy.random", ("seed", "set_state"))


def _put(tape: Tape, module: str, setters: tuple[str, ...]) -> _Draws:
    draws = _Draws(tape, module.partition(".")[0])
    names = [*draws_of(module)]
    hooks = [Hook(name, _Draws.observe, given=(name.rpartition(".")[2],)) for name in names]
    put(tape, [*hooks, *(Hook(f"{module}.{name}", _Draws.close) for name in setters)], draws)
    return draws
