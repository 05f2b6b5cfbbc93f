"""What is held still on purpose, so that two runs show whether it was the cause of their difference.

Owns generators, clock, entropy, listings and torch's switches. Threads have a module of their own; hash seed
and addresses are settled before Python starts, in `launch`. All but the user's own lines get what is real.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from truestep.watch.hooks.sources import FOLDERS, RANDOM
from truestep.watch.hooks.table import Function, Hook, put
from truestep.watch.script.tape import Tape

_TICK_NS = 1_000_000
_EPOCH_NS = 1_700_000_000 * 10**9
_CLOCKS = {"time": _EPOCH_NS, "perf_counter": 10**12, "monotonic": 10**12, "process_time": 10**9}
"""Where each clock begins. They advance together, as real ones do."""

_NO_RANDOMIZE = 0x0040000


def _change(target: str, act: Function, *also: str) -> Hook:
    return Hook(target, act, also=also, changes=True)


def freeze_os(tape: Tape) -> None:
    """Sort what the user's lines list; give them bytes that come again."""
    frozen = _Os(tape)
    if "listing" in tape.plan.frozen:
        put(tape, [_change("os.listdir", _Os.listdir), _change("os.scandir", _Os.scandir)], frozen)
    if "entropy" in tape.plan.frozen:
        put(tape, [_change("os.urandom", _Os.urandom)], frozen)
    if "addresses" in tape.plan.frozen and not _addresses_are_fixed():
        error = "addresses are not held still: this system has no personality() or does not allow it"
        tape.write("trouble", error=error)


class _Os:
    """What the system gives to the user's own lines, the same in every run."""

    def __init__(self, tape: Tape) -> None:
        self._sites = tape.sites
        self._numbers = itertools.count()

    def listdir(self, listdir: Function, /, *args: Any, **kwargs: Any) -> Any:
        """Sort names."""
        found = listdir(*args, **kwargs)
        return found if self._sites.reached(FOLDERS) is None else sorted(found)

    def scandir(self, scandir: Function, /, *args: Any, **kwargs: Any) -> Any:
        """Sort entries."""
        found = scandir(*args, **kwargs)
        return found if self._sites.reached(FOLDERS) is None else _Sorted(found)

    def urandom(self, urandom: Function, size: int) -> Any:
        """Give bytes that come again."""
        if self._sites.reached(RANDOM) is None:
            return urandom(size)
        from hashlib import shake_128  # noqa: PLC0415 - the script may not need it

        return shake_128(b"truestep.watch.control.freeze %d" % next(self._numbers)).digest(size)


def _addresses_are_fixed() -> bool:
    try:
        return bool(int(Path("/proc/self/personality").read_text(), 16) & _NO_RANDOMIZE)
    except OSError:
        return False


def freeze_time(tape: Tape) -> None:
    """Let readings at the user's own lines advance by one millisecond each, and by what they sleep."""
    if "clock" not in tape.plan.frozen:
        return
    readings = [
        Hook(f"time.{name}{end}", _Clock.read, given=(begin_ns, unit_ns), changes=True)
        for name, begin_ns in _CLOCKS.items()
        for end, unit_ns in (("", 10**9), ("_ns", 1))
    ]
    put(tape, [*readings, _change("time.sleep", _Clock.sleep)], _Clock(tape))


def freeze_datetime(tape: Tape) -> None:
    """Let `datetime.now()` and its like begin at one moment. The types are closed: others stand for them."""
    if "clock" not in tape.plan.frozen:
        return
    module: Any = sys.modules["datetime"]
    clock = _Clock(tape)

    def now(read: Function, *args: Any) -> Any:
        if tape.sites.reached() is None:
            return read(*args)
        return module.datetime.fromtimestamp(clock.read(_EPOCH_NS, 10**9, lambda: 0.0), *args)

    class Datetime(module.datetime):  # type: ignore[misc]
        """Stands for `datetime.datetime`."""

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return now(super().now, tz)

        @classmethod
        def utcnow(cls) -> Any:
            return now(super().utcnow)

        @classmethod
        def today(cls) -> Any:
            return now(super().today)

    Datetime.__name__ = Datetime.__qualname__ = "datetime"
    Datetime.__module__ = "datetime"
    module.datetime = Datetime


class _Clock:
    """How far the held clocks have advanced."""

    def __init__(self, tape: Tape) -> None:
        self._sites = tape.sites
        self._passed_ns = 0

    def read(self, begin_ns: int, unit_ns: int, read: Function) -> Any:
        """Read a clock."""
        if self._sites.reached() is None:
            return read()
        self._passed_ns += _TICK_NS
        now_ns = begin_ns + self._passed_ns
        return now_ns if unit_ns == 1 else now_ns / unit_ns

    def sleep(self, sleep: Function, seconds: Any) -> None:
        """Sleep; a loop that does until some time has passed must not wait for a clock that stands still."""
        if self._sites.reached() is not None and isinstance(seconds, int | float):
            self._passed_ns += int(seconds * 10**9)
        sleep(seconds)


class _Sorted:
    """The entries of a folder by name: read at once, then closed like the iterator that it stands for."""

    def __init__(self, entries: Any) -> None:
        with entries:
            self._entries = iter(sorted(entries, key=lambda entry: entry.name))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> "_Sorted":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


class _Seeding:
    """Seeds that were left to the system: the next number is each of them."""

    def __init__(self) -> None:
        self.fresh = itertools.count(1)

    def seed(self, place: int, seed: Function, /, *args: Any, **kwargs: Any) -> Any:
        """Seed a generator; the seed has this place among the arguments."""
        given = args[place] if len(args) > place else kwargs.get("a", kwargs.get("seed"))
        if given is None:
            args, kwargs = (*args[:place], next(self.fresh)), {}
        return seed(*args, **kwargs)

    def seed_torch(self, _seed: Function) -> int:
        """Seed torch's generators."""
        number = next(self.fresh)
        sys.modules["torch"].manual_seed(number)
        return number


def freeze_random(tape: Tape) -> None:
    """Seed the global generator of `random`, and every one that is made without a seed."""
    if "entropy" in tape.plan.frozen:
        sys.modules["random"]._urandom = sys.modules["os"].urandom  # type: ignore[attr-defined] # imported before us
    if "random" in tape.plan.frozen:
        own = Hook("random.Random.seed", _Seeding.seed, given=(1,), changes=True)
        put(tape, [own, Hook("random.seed", _Seeding.seed, given=(0,), changes=True)], _Seeding())
        sys.modules["random"].seed(0)


def freeze_numpy(tape: Tape) -> None:
    """Seed NumPy's global generator, and all that are made without a seed."""
    if "numpy" in tape.plan.frozen:
        random, seeding = sys.modules["numpy"].random, _Seeding()
        random.bit_generator.randbits = lambda _bits: next(seeding.fresh)
        put(tape, [Hook("numpy.random.seed", _Seeding.seed, given=(0,), changes=True)], seeding)
        random.seed(0)


def freeze_torch(tape: Tape) -> None:
    """Seed torch's generators, choose its algorithms and its number of threads as the plan says."""
    torch: Any = sys.modules["torch"]
    frozen = tape.plan.frozen
    if "torch" in frozen:
        put(tape, [_change("torch.random.seed", _Seeding.seed_torch, "torch.seed")], _Seeding())
        torch.manual_seed(0)
    if "algorithms" in frozen:
        torch.use_deterministic_algorithms(True, warn_only=True)
        put(tape, [_change("torch.use_deterministic_algorithms", _switch_on)])
    if "intraop" in frozen:
        torch.set_num_threads(1)
        put(tape, [_change("torch.set_num_threads", _ignore)])


def _switch_on(switch: Function, mode: bool, *, warn_only: bool = False) -> None:
    """Ignore a switch that would be turned off."""
    if mode:
        switch(mode, warn_only=warn_only)


def _ignore(_set: Function, _number: int) -> None:
    """Stand in for a setting that is held."""
