"""First draws from Python's and NumPy's global generators, as long as nobody has seeded them.

Owns the lines that draw from an unseeded generator. Once it is seeded, or enough was seen, a draw costs one
call.
"""

import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

Function = Callable[..., Any]
_MAX_NOTED = 12
_STATES = frozenset(
    {"seed", "getstate", "setstate", "get_state", "set_state", "default_rng", "get_bit_generator"}
)


class _Generator:
    """What is known of one global generator."""

    def __init__(self, tape: Tape, name: str) -> None:
        self.tape = tape
        self.name = name
        self.is_open = True
        self.num_noted = 0

    def note(self, function: str, result: Any, args: tuple[Any, ...]) -> None:
        """Note a draw of the user's own lines."""
        place = self.tape.sites.reached() if self.tape.is_on else None
        if place is None:
            return
        self.num_noted += 1
        self.is_open = self.num_noted < _MAX_NOTED
        drawn = args[0] if result is None and args else result
        size = getattr(drawn, "size", None)
        if not isinstance(size, int):
            size = len(drawn) if isinstance(drawn, list | tuple) else 1
        value = {"size": size, "value": drawn if type(drawn) is int else None}
        if (
            hasattr(drawn, "item")
            and size == 1
            and getattr(getattr(drawn, "dtype", None), "kind", "") in "iu"
        ):
            value["value"] = int(drawn.item())
        self.tape.mark(("drawn", place[0], self.name, function), perf_counter_ns(), value=value)


def watch_random(tape: Tape) -> None:
    """Observe the global generator of `random`."""
    if tape.plan.inspect:
        module: Any = sys.modules["random"]
        _put(tape, module, owner=module._inst, setters=("seed", "setstate"))
        Wraps(tape).put("seed", lambda seed: _wrap_own_seed(seed, tape), module.Random)


def watch_numpy(tape: Tape) -> None:
    """Observe the global generator of NumPy."""
    if tape.plan.inspect:
        module = sys.modules["numpy"].random
        _put(tape, module, owner=module.mtrand._rand, setters=("seed", "set_state"))


def _put(tape: Tape, module: Any, *, owner: Any, setters: tuple[str, ...]) -> None:
    wraps, generator = Wraps(tape), _Generator(tape, "numpy" if "numpy" in module.__name__ else "random")
    for name in module.__all__:
        if name not in _STATES and getattr(getattr(module, name, None), "__self__", None) is owner:
            wraps.put(name, lambda draw, name=name: _wrap_draw(draw, generator, name), module)  # type: ignore[misc]
    for name in setters:
        wraps.put(name, lambda seed: _wrap_seed(seed, generator), module)


def _wrap_draw(draw: Function, generator: _Generator, name: str) -> Function:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            result = draw(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        if generator.is_open:
            generator.note(name, result, args)
        return result

    return wrapper


def _wrap_seed(seed: Function, generator: _Generator) -> Function:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        generator.is_open = False
        try:
            return seed(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    return wrapper


def _wrap_own_seed(seed: Function, tape: Tape) -> Function:
    """Note generators that the user's own lines make without a seed: `random.Random()`."""

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tape.is_on and next(iter((*args, *kwargs.values())), None) is None:
            place = tape.sites.reached(frozenset({"random"}))
            if place is not None and (place[1] or "").endswith("Random.__init__"):
                tape.mark(("drawn", place[0], "random.Random", "fresh"), perf_counter_ns(), value={"size": 0})
        try:
            return seed(self, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    return wrapper
