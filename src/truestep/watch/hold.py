"""What is held still on purpose, so that two runs show whether it was the cause of their difference.

Owns generators, clock, entropy, listings and torch's switches. Threads have a module of their own; hash seed
and addresses are settled before Python starts, in `launch`. All but the user's own lines get what is real.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from truestep.watch.sources import FOLDERS, RANDOM
from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

Function = Callable[..., Any]
_TICK_NS = 1_000_000
_EPOCH_NS = 1_700_000_000 * 10**9
_CLOCKS = {"time": _EPOCH_NS, "perf_counter": 10**12, "monotonic": 10**12, "process_time": 10**9}
"""Where each clock begins. They advance together, as real ones do."""

_NO_RANDOMIZE = 0x0040000


def hold_os(tape: Tape) -> None:
    """Sort what the user's lines list; give them bytes that come again."""
    os = sys.modules["os"]
    wraps = Wraps()
    if "listing" in tape.plan.hold:
        wraps.put("listdir", lambda act: _wrap_listdir(act, tape), os)
        wraps.put("scandir", lambda act: _wrap_scandir(act, tape), os)
    if "entropy" in tape.plan.hold:
        wraps.put("urandom", lambda act: _wrap_urandom(act, tape), os)
    if "addresses" in tape.plan.hold and not _addresses_are_fixed():
        error = "addresses are not held still: this system has no personality() or does not allow it"
        tape.write("trouble", error=error)


def _addresses_are_fixed() -> bool:
    try:
        return bool(int(Path("/proc/self/personality").read_text(), 16) & _NO_RANDOMIZE)
    except OSError:
        return False


def hold_time(tape: Tape) -> None:
    """Let readings at the user's own lines advance by one millisecond each, and by what they sleep."""
    if "clock" not in tape.plan.hold:
        return
    wraps, clock = Wraps(), _Clock()
    for name, begin_ns in _CLOCKS.items():
        wraps.put(name, _reading(tape, clock, begin_ns=begin_ns, unit_ns=10**9), time)
        wraps.put(f"{name}_ns", _reading(tape, clock, begin_ns=begin_ns, unit_ns=1), time)
    wraps.put("sleep", lambda sleep: _wrap_sleep(sleep, tape, clock), time)


class _Clock:
    """How far the held clocks have advanced."""

    def __init__(self) -> None:
        self.passed_ns = 0


def _reading(tape: Tape, clock: _Clock, *, begin_ns: int, unit_ns: int) -> Callable[[Function], Function]:
    def make(read: Function) -> Function:
        def wrapper() -> Any:
            if tape.sites.reached() is None:
                return read()
            clock.passed_ns += _TICK_NS
            now_ns = begin_ns + clock.passed_ns
            return now_ns if unit_ns == 1 else now_ns / unit_ns

        return wrapper

    return make


def _wrap_sleep(sleep: Function, tape: Tape, clock: _Clock) -> Function:
    def wrapper(seconds: Any) -> None:
        # A loop that sleeps until some time has passed must not wait for a clock that stands still.
        if tape.sites.reached() is not None and isinstance(seconds, int | float):
            clock.passed_ns += int(seconds * 10**9)
        try:
            sleep(seconds)
        except BaseException as error:
            drop_frame(error)
            raise

    return wrapper


def _wrap_listdir(listdir: Function, tape: Tape) -> Function:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            found = listdir(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        return found if tape.sites.reached(FOLDERS) is None else sorted(found)

    return wrapper


def _wrap_scandir(scandir: Function, tape: Tape) -> Function:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            found = scandir(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        return found if tape.sites.reached(FOLDERS) is None else _Sorted(found)

    return wrapper


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


def _wrap_urandom(urandom: Function, tape: Tape) -> Function:
    numbers = itertools.count()

    def wrapper(size: int) -> Any:
        if tape.sites.reached(RANDOM) is None:
            return urandom(size)
        from hashlib import shake_128  # noqa: PLC0415 - the script may not need it

        return shake_128(b"truestep.watch.hold %d" % next(numbers)).digest(size)

    return wrapper


def hold_random(tape: Tape) -> None:
    """Seed the global generator of `random`, and every one that is made without a seed."""
    if "entropy" in tape.plan.hold:
        sys.modules["random"]._urandom = sys.modules["os"].urandom  # type: ignore[attr-defined] # imported before us
    if "random" not in tape.plan.hold:
        return
    random, wraps, fresh = sys.modules["random"], Wraps(), itertools.count(1)
    wraps.put("seed", lambda seed: _seeding(seed, fresh, place=1), random.Random)
    wraps.put("seed", lambda seed: _seeding(seed, fresh, place=0), random)
    random.seed(0)


def hold_numpy(tape: Tape) -> None:
    """Seed NumPy's global generator, and all that are made without a seed."""
    if "numpy" not in tape.plan.hold:
        return
    random, wraps, fresh = sys.modules["numpy"].random, Wraps(), itertools.count(1)
    random.bit_generator.randbits = lambda _bits: next(fresh)
    wraps.put("seed", lambda seed: _seeding(seed, fresh, place=0), random)
    random.seed(0)


def hold_torch(tape: Tape, wraps: Wraps) -> None:
    """Seed torch's generators, choose its algorithms and its number of threads as the plan says."""
    torch, hold = sys.modules["torch"], tape.plan.hold
    if "torch" in hold:
        fresh = itertools.count(1)
        wraps.put("seed", lambda _: _seeding_torch(torch, fresh), torch.random, torch)
        torch.manual_seed(0)
    if "algorithms" in hold:
        torch.use_deterministic_algorithms(True, warn_only=True)
        wraps.put("use_deterministic_algorithms", _only_on, torch)
    if "intraop" in hold:
        torch.set_num_threads(1)
        wraps.put("set_num_threads", lambda _: _ignore, torch)


def _seeding(seed: Function, fresh: Iterator[int], *, place: int) -> Function:
    """Wrap a function that seeds; where the seed was left to the system the next number is it."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = args[place] if len(args) > place else kwargs.get("a", kwargs.get("seed"))
        if given is None:
            args, kwargs = (*args[:place], next(fresh)), {}
        try:
            return seed(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    return wrapper


def _seeding_torch(torch: Any, fresh: Iterator[int]) -> Function:
    manual_seed = torch.manual_seed

    def wrapper() -> int:
        number = next(fresh)
        manual_seed(number)
        return number

    return wrapper


def _only_on(switch: Function) -> Function:
    def wrapper(mode: bool, *, warn_only: bool = False) -> None:
        if mode:
            switch(mode, warn_only=warn_only)

    return wrapper


def _ignore(_number: int) -> None:
    """Stand in for a setting that is held."""
