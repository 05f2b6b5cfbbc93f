"""What a script takes from outside torch: clock, environment, folders, process id, entropy, draws.

Owns which functions are observed for it. Only what the user's own lines ask for is noted, with what they were
given, and what libraries draw that they call; results are handed on unchanged. `datetime.now` is not seen:
its type is closed.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from time import perf_counter_ns
from typing import Any

from truestep.watch.evidence.facts.surroundings import SourceRead
from truestep.watch.hooks.table import Hook, Observation, put
from truestep.watch.script.tape import Tape

FOLDERS = frozenset({"os", "glob", "pathlib", "shutil", "fnmatch"})
"""Packages through which the user's lines list folders."""
RANDOM = frozenset({"uuid", "secrets", "random"})
"""Packages through which they ask for entropy."""
_MAPPINGS = frozenset({"os", "collections", "posixpath", "ntpath"})
_NONE: frozenset[str] = frozenset()
_listdir = os.listdir
_DRAWN = ("random", "numpy")
"""Global generators: what a library draws from them, it draws for the line that called it."""

_CLOCKS = ("time", "perf_counter", "monotonic", "process_time")
_STATES = ("seed", "getstate", "setstate", "get_state", "set_state", "default_rng", "get_bit_generator")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
_MAX_CHARACTERS = 200
_MAX_ALIKE = 1000
"""How often the same reading at the same place is noted: the first times are enough to find a difference."""
_MAX_DEPTH, _FEW = 3, 16
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class _Notes:
    """Notes readings of one kind."""

    def __init__(self, tape: Tape, what: str, through: frozenset[str] = _NONE) -> None:
        self._tape = tape
        self._what = what
        self._through = through
        self._counts: dict[tuple[int, str], int] = {}

    def begin(self, name: str) -> tuple[int, str] | None:
        """Return where it is asked for and under which name; None if not for a line of the user's own."""
        place = self._tape.sites.reached(self._through)
        if place is None and self._what in _DRAWN:
            place = self._tape.sites.reached_library()
        if place is None:
            return None
        site, called = place
        if called is not None and self._what not in (*_DRAWN, "environment"):
            name = called.replace("._", ".").removesuffix("._init__")
        key = (site, name)
        number = self._counts[key] = self._counts.get(key, 0) + 1
        return key if number <= _MAX_ALIKE else None

    def end(self, key: tuple[int, str] | None, begun_ns: int, value: Any) -> None:
        """Note what was given."""
        if key is not None and self._tape.is_on:
            self._tape.mark(SourceRead(self._what, key[1], text_of(value)), key[0], begun_ns)

    def observe(self, name: str, /, *_: Any, **__: Any) -> Observation:
        """Note what a function gives."""
        key, begun = self.begin(name), perf_counter_ns()
        result = yield
        self.end(key, begun, result)

    def observe_draw(self, name: str, /, *args: Any, **__: Any) -> Observation:
        """Note what was drawn: for `shuffle` the list that it has put in another order."""
        key, begun = self.begin(name), perf_counter_ns()
        result = yield
        self.end(key, begun, args[0] if result is None and args else result)

    def observe_variable(self, _environ: Any, key: Any) -> Observation:
        """Note a variable of the environment, also one that is not set; of a secret only its digest."""
        begun, value = perf_counter_ns(), None
        try:
            value = yield
        finally:
            is_secret = value is not None and any(word in str(key).upper() for word in _SECRET)
            self.end(self.begin(str(key)), begun, _digest(repr(value).encode()) if is_secret else value)

    def observe_scandir(self, path: Any = ".", /, **_: Any) -> Observation:
        """Note the names in a folder, in the order in which the system lists them."""
        key, begun = self.begin("os.scandir"), perf_counter_ns()
        yield
        if key is not None and not isinstance(path, int):  # the place in an open folder is the script's
            with suppress(OSError):
                self.end(key, begun, _listdir(path))

    def observe_seed(self, generator: Any, /, *args: Any, **kwargs: Any) -> Observation:
        """Note a generator that is seeded by the system."""
        begun = perf_counter_ns()
        yield
        if next(iter((*args, kwargs.get("a"))), None) is None:
            self.end(self.begin("random.Random.seed"), begun, generator.getstate())

    def observe_default_rng(self, /, *args: Any, **kwargs: Any) -> Observation:
        """Note a generator of NumPy's that is seeded by the system."""
        begun = perf_counter_ns()
        result = yield
        if next(iter((*args, *kwargs.values())), None) is None:
            self.end(self.begin("numpy.random.default_rng"), begun, repr(result.bit_generator.state))


TIME = tuple(
    Hook(f"time.{name}", _Notes.observe, given=(f"time.{name}",))
    for clock in _CLOCKS
    for name in (clock, f"{clock}_ns")
)
LISTINGS = (
    Hook("os.listdir", _Notes.observe, given=("os.listdir",)),
    Hook("os.scandir", _Notes.observe_scandir),
)


def watch_time(tape: Tape) -> None:
    """Observe the clocks."""
    if tape.plan.sources:
        put(tape, TIME, _Notes(tape, "clock"))


def watch_os(tape: Tape) -> None:
    """Observe listings of folders; if asked also the environment, the process id and the system's entropy."""
    if tape.plan.sources or tape.plan.inspect:
        put(tape, LISTINGS, _Notes(tape, "listing", FOLDERS))
    if tape.plan.sources:
        variables = (Hook("os._Environ.__getitem__", _Notes.observe_variable),)
        put(tape, variables, _Notes(tape, "environment", _MAPPINGS))
        put(tape, [Hook("os.getpid", _Notes.observe, given=("os.getpid",))], _Notes(tape, "pid"))
        entropy = _Notes(tape, "entropy", RANDOM)
        put(tape, [Hook("os.urandom", _Notes.observe, given=("os.urandom",))], entropy)


def watch_random(tape: Tape) -> None:
    """Observe draws from the global generator of `random`, and generators made without a seed."""
    if not tape.plan.sources:
        return
    random: Any = sys.modules["random"]
    if random._urandom is not os.urandom:  # imported before us
        random._urandom = os.urandom
    entropy = _Notes(tape, "entropy", frozenset({"random"}))
    put(tape, [Hook("random.Random.seed", _Notes.observe_seed)], entropy)
    put(tape, _draw_hooks("random"), _Notes(tape, "random"))


def watch_numpy(tape: Tape) -> None:
    """Observe draws from NumPy's global generator, and generators made without a seed."""
    if tape.plan.sources:
        put(tape, [Hook("numpy.random.default_rng", _Notes.observe_default_rng)], _Notes(tape, "entropy"))
        put(tape, _draw_hooks("numpy.random"), _Notes(tape, "numpy"))


def _draw_hooks(module: str) -> list[Hook]:
    return [Hook(name, _Notes.observe_draw, given=(name,)) for name in draws_of(module)]


def draws_of(name: str) -> Iterator[str]:
    """Yield the full names of functions that draw from the global generator of a module."""
    module: Any = import_module(name)  # NumPy imports its own when it is asked for
    owner = module._inst if name == "random" else module.mtrand._rand
    for function in module.__all__:
        if function not in _STATES and getattr(getattr(module, function, None), "__self__", None) is owner:
            yield f"{name}.{function}"


def text_of(value: Any) -> str:
    """Return a value in few characters; of a long one the beginning, and a digest of all of it."""
    text = _text(value, 0)
    if len(text) <= _MAX_CHARACTERS:
        return text
    mark = f"... {_digest(text.encode(errors='surrogateescape'))}"
    return text[: _MAX_CHARACTERS - len(mark)] + mark


def _text(value: Any, depth: int) -> str:
    """Return what `repr` would, but call none of the user's own: theirs may tell addresses, or draw."""
    if type(value) in _PLAIN:
        return repr(value)
    if type(value) in (list, tuple) and depth < _MAX_DEPTH:
        return f"[{', '.join(_text(item, depth + 1) for item in value)}]"
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        if value.size <= _FEW:
            return repr(value.tolist())
        return f"{value.dtype}{list(value.shape)} {_digest(value.tobytes())}"
    return f"<{type(value).__qualname__}>"


def _digest(raw: bytes) -> str:
    from hashlib import sha256  # noqa: PLC0415 - the script may not need it

    return sha256(raw).hexdigest()[:16]
