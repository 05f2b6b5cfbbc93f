"""What a script takes from outside torch: clock, environment, folders, process id, entropy, draws.

Owns which functions are observed for it. Only what the user's own lines ask for is noted, with what they were
given; results are handed on unchanged. `datetime.now` is not seen: its type is closed.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

from truestep.watch.tape import Key, Tape
from truestep.watch.wrap import Wraps, drop_frame

Function = Callable[..., Any]

FOLDERS = frozenset({"os", "glob", "pathlib", "shutil", "fnmatch"})
"""Packages through which the user's lines list folders."""
RANDOM = frozenset({"uuid", "secrets", "random"})
"""Packages through which they ask for entropy."""
_MAPPINGS = frozenset({"os", "collections", "posixpath", "ntpath"})
_NONE: frozenset[str] = frozenset()

_CLOCKS = ("time", "perf_counter", "monotonic", "process_time")
_STATES = ("seed", "getstate", "setstate", "get_state", "set_state", "default_rng")
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
        self._counts: dict[Key, int] = {}

    def begin(self, name: str) -> Key | None:
        """Return the moment's key, or None if it is not the user's own code that asks."""
        place = self._tape.sites.reached(self._through) if self._tape.is_on else None
        if place is None:
            return None
        site, called = place
        if called is not None and self._what != "environment":
            name = called.replace("._", ".").removesuffix("._init__")
        key = ("source", site, self._what, name)
        number = self._counts[key] = self._counts.get(key, 0) + 1
        return key if number <= _MAX_ALIKE else None

    def end(self, key: Key | None, begun_ns: int, value: Any) -> None:
        """Note what was given."""
        if key is not None and self._tape.is_on:
            self._tape.mark(key, begun_ns, value=text_of(value))

    def noting(self, name: str, value_of: Function | None = None) -> Callable[[Function], Function]:
        """Return what makes the wrapper of a function; `value_of` takes its result and its arguments."""

        def make(act: Function) -> Function:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                key, begun = self.begin(name), perf_counter_ns()
                try:
                    result = act(*args, **kwargs)
                except BaseException as error:
                    drop_frame(error)
                    raise
                if key is not None:
                    self.end(key, begun, result if value_of is None else value_of(result, *args))
                return result

            return wrapper

        return make


def watch_time(tape: Tape) -> None:
    """Observe the clocks."""
    if tape.plan.sources:
        notes, wraps = _Notes(tape, "clock"), Wraps(tape)
        for clock in _CLOCKS:
            for name in (clock, f"{clock}_ns"):
                wraps.put(name, notes.noting(f"time.{name}"), time)


def watch_os(tape: Tape) -> None:
    """Observe listings of folders; if asked also the environment, the process id and the system's entropy."""
    if not tape.plan.sources and not tape.plan.inspect:
        return
    wraps, listings = Wraps(tape), _Notes(tape, "listing", FOLDERS)
    wraps.put("listdir", listings.noting("os.listdir"), os)
    wraps.put("scandir", lambda scan: _wrap_scandir(scan, listings), os)
    if not tape.plan.sources:
        return
    variables = _Notes(tape, "environment", _MAPPINGS)
    wraps.put("__getitem__", lambda get: _wrap_variable(get, variables), os._Environ)
    wraps.put("getpid", _Notes(tape, "pid").noting("os.getpid"), os)
    wraps.put("urandom", _Notes(tape, "entropy", RANDOM).noting("os.urandom"), os)


def watch_uuid(tape: Tape) -> None:
    """Observe ids made from address and clock; others are made from the system's entropy."""
    if tape.plan.sources:
        made = _Notes(tape, "entropy").noting("uuid.uuid1", lambda result, *_: str(result))
        Wraps(tape).put("uuid1", made, sys.modules["uuid"])


def watch_random(tape: Tape) -> None:
    """Observe draws from the global generator of `random`, and generators made without a seed."""
    if not tape.plan.sources:
        return
    random: Any = sys.modules["random"]
    wraps = Wraps(tape)
    if random._urandom is not os.urandom:  # imported before us
        random._urandom = os.urandom
    entropy = _Notes(tape, "entropy", frozenset({"random"}))
    wraps.put("seed", lambda seed: _wrap_seed(seed, entropy), random.Random)
    _watch_draws(_Notes(tape, "random"), wraps, random, owner=random._inst)


def watch_numpy(tape: Tape) -> None:
    """Observe draws from NumPy's global generator, and generators made without a seed."""
    if not tape.plan.sources:
        return
    random, wraps = sys.modules["numpy"].random, Wraps(tape)
    wraps.put("default_rng", lambda make: _wrap_default_rng(make, _Notes(tape, "entropy")), random)
    _watch_draws(_Notes(tape, "numpy"), wraps, random, owner=random.mtrand._rand)


def _watch_draws(notes: _Notes, wraps: Wraps, module: Any, *, owner: Any) -> None:
    for name in module.__all__:
        if name not in _STATES and getattr(getattr(module, name, None), "__self__", None) is owner:
            wraps.put(name, notes.noting(f"{module.__name__}.{name}", _drawn), module)


def _drawn(result: Any, *args: Any) -> Any:
    """What was drawn: for `shuffle` the list that it has put in another order."""
    return args[0] if result is None and args else result


def _wrap_variable(get: Function, notes: _Notes) -> Function:
    def __getitem__(self: Any, key: Any) -> Any:  # noqa: N807
        begun = perf_counter_ns()
        try:
            result = get(self, key)
        except BaseException as error:
            notes.end(notes.begin(str(key)), begun, None)
            drop_frame(error)
            raise
        is_secret = any(word in str(key).upper() for word in _SECRET)
        notes.end(notes.begin(str(key)), begun, _digest(repr(result).encode()) if is_secret else result)
        return result

    return __getitem__


def _wrap_scandir(scan: Function, notes: _Notes) -> Function:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        key, begun = notes.begin("os.scandir"), perf_counter_ns()
        try:
            result = scan(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        return result if key is None else _Listed(result, lambda names: notes.end(key, begun, names))

    return wrapper


class _Listed:
    """Hands on the entries of a folder one by one, and notes their names when it is at the end or closed."""

    def __init__(self, entries: Any, note: Callable[[list[Any]], None]) -> None:
        self._entries = entries
        self._note: Callable[[list[Any]], None] | None = note
        self._names: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            entry = next(self._entries)
        except StopIteration:
            self._end()
            raise
        self._names.append(entry.name)
        return entry

    def __enter__(self) -> "_Listed":
        self._entries.__enter__()
        return self

    def __exit__(self, *error: object) -> Any:
        self._end()
        return self._entries.__exit__(*error)

    def close(self) -> None:
        self._end()
        self._entries.close()

    def _end(self) -> None:
        if self._note is not None:
            self._note(self._names)
            self._note = None


def _wrap_seed(seed: Function, notes: _Notes) -> Function:
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun = perf_counter_ns()
        try:
            result = seed(self, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        if next(iter((*args, kwargs.get("a"))), None) is None:
            notes.end(notes.begin("random.Random.seed"), begun, self.getstate())
        return result

    return wrapper


def _wrap_default_rng(make: Function, notes: _Notes) -> Function:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        begun = perf_counter_ns()
        try:
            result = make(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        if next(iter((*args, *kwargs.values())), None) is None:
            key = notes.begin("numpy.random.default_rng")
            notes.end(key, begun, repr(result.bit_generator.state))
        return result

    return wrapper


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
