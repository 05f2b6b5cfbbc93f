"""Inside the script's process: its training loader gets another batch size, and steps tell time and memory.

Owns the child's side of batch sizes (`batch_size` has the other): which loader trains, what it is given, when
enough was seen. Runs in somebody's process: nothing here may raise or draw.
"""

import multiprocessing
import os
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from truestep.base.device import module_in_use
from truestep.base.memory import process_peak_bytes
from truestep.run.data.loader import Loader
from truestep.tune.search.intervals import warm_up
from truestep.watch.hooks.table import Function, Hook, bound, calling_module, put
from truestep.watch.script.tape import Tape

_OWN_WORKERS = "truestep.run.data.workers"
"""Where our own loader makes a DataLoader: it is a part of ours."""
_NO_SIZE = "its batch_size is None because the dataset makes the batches"
_LONG = 4.0
"""After so many times the seconds asked for it is enough, settled or not, with a few steps."""
_MIN_LONG_STEPS = 6


def resize(value: dict[str, Any], tape: Tape) -> None:
    """Build the loaders of `value["loaders"]` (by the order in which they are made) with another batch size.

    It is theirs times `num` / `den`. After enough steps the script is ended: at least `min_steps` for
    `seconds` that have settled, at most `max_steps`.
    """
    loaders = _Loaders(value, tape)
    _Steps(value, tape, loaders)


class _Loaders:
    """All loaders of the script in the order in which they are made, and which of them feed training."""

    def __init__(self, value: dict[str, Any], tape: Tape) -> None:
        self._chosen, self._num, self._den = set(value["loaders"]), value["num"], value["den"]
        self._tape = tape
        self._num_made = 0
        self._index_of: dict[int, int] = {}
        self._index_of_sampler: dict[int, int] = {}
        self._index_of_number: dict[int, int] = {}
        self._kept: list[Any] = []
        self._newest: int | None = None
        self._fed: set[int] = set()
        """Loaders with a batch in this step, before a backward pass."""
        self._num_fed: Counter[int] = Counter()
        self._own: list[int] = []
        self.num_batches = 0
        self.on_feed: Callable[[], None] = lambda: None
        """Called when our own loader begins to deliver."""
        put(tape, _HOOKS, self)
        tape.listen(epoch=self._meet, batch=self._take_batch, backward_begins=self._take_backward)

    def make(self, note: Function, init: Function, loader: Any, /, *args: Any, **kwargs: Any) -> None:
        """Make a loader with its batch size or another one."""
        is_inner = calling_module() == _OWN_WORKERS
        given = None if is_inner else bound(init, (loader, *args), kwargs)
        index = self._num_made
        if given is not None:
            self._num_made += 1
            if index in self._chosen:
                size = given.arguments.get("batch_size", 1)
                given.arguments["batch_size"] = max(1, size * self._num // self._den)
            args, kwargs = given.args[1:], given.kwargs
        init(loader, *args, **kwargs)
        if given is not None:
            note(self, loader, index, given.arguments)

    def _note(self, loader: Any, index: int, given: dict[str, Any]) -> None:
        sampler = given.get("batch_sampler")
        origin = self._index_of_sampler.get(id(sampler), index) if sampler is not None else index
        self._index_of[id(loader)] = origin
        if origin != index:  # made of another one, as frameworks do: that one is to be changed
            return
        why = ""
        if sampler is not None:
            why = f"it uses a batch_sampler ({type(sampler).__name__}), which sets the size"
        elif loader.batch_size is None:
            why = _NO_SIZE
        else:
            self._index_of_sampler[id(loader.batch_sampler)] = index
            self._kept.append(loader.batch_sampler)  # so that nothing else gets its address
        self._write(loader, index, why=why, workers=loader.num_workers, samples=loader.sampler)

    def _note_own(self, loader: Any, index: int, _given: dict[str, Any]) -> None:
        self._index_of[id(loader)] = index
        why = (
            ""
            if loader.batch_size is not None
            else "its batch_size is None because the dataset makes the batches"
        )
        self._write(loader, index, why=why, workers=loader.workers, samples=loader.dataset)

    def _write(self, loader: Any, index: int, *, why: str, workers: int, samples: Any) -> None:
        try:
            num_samples = len(samples)
        except (TypeError, NotImplementedError):  # a stream
            num_samples = None
        self._tape.write(
            "sized",
            what="loader",
            index=index,
            name=type(loader).__qualname__,
            batch_size=loader.batch_size,
            workers=workers,
            num_samples=num_samples,
            why=why,
            is_global=isinstance(loader, Loader),
        )

    def observe_feed(self, loader: Any, /, *_: Any, **__: Any) -> None:
        """Our own loader: a run gets training's batches from `feed`, those of an evaluation elsewhere."""
        index = self._index_of.get(id(loader))
        if index is not None and index not in self._own:
            self._own.append(index)
        self.on_feed()

    def _meet(self, loader: Any, number: int) -> None:
        index = self._index_of.get(id(loader))
        if index is None:  # Accelerate's loaders become one without being made as one
            index = self._index_of_sampler.get(id(getattr(loader, "batch_sampler", None)))
        if index is not None:
            self._index_of_number[number] = index

    def _take_batch(self, number: int, _batch: Any) -> None:
        index = self._index_of_number.get(number)
        if index is not None:  # one iterator in another tells twice, and only the outer one is known
            self._newest = index
            self.num_batches += 1

    def _take_backward(self, _losses: Any, _how: str) -> None:
        if self._newest is not None:
            self._fed.add(self._newest)

    def end_step(self) -> None:
        """A step is over: what is fetched from here on is for the next."""
        self._num_fed.update(self._fed)
        self._fed.clear()
        self._newest = None

    def trained(self, num_steps: int) -> list[int]:
        """Return the loaders that feed training: most steps had a batch of theirs before a backward pass."""
        return [*self._own, *(index for index, num in self._num_fed.items() if 2 * num >= num_steps)]


_HOOKS = (
    Hook("torch.utils.data.DataLoader.__init__", _Loaders.make, given=(_Loaders._note,), changes=True),
    Hook(
        "truestep.run.data.loader.Loader.__init__", _Loaders.make, given=(_Loaders._note_own,), changes=True
    ),
    Hook("truestep.run.data.loader.Loader.feed", _Loaders.observe_feed),
)


class _Steps:
    """When steps ended, and the most memory that they held."""

    def __init__(self, value: dict[str, Any], tape: Tape, loaders: _Loaders) -> None:
        self._value, self._tape, self._loaders = value, tape, loaders
        self._pid = os.getpid()
        self._before_bytes: int | None = None
        self._ends: list[float] = []
        self._batches: list[int] = []
        self._is_written = False
        tape.listen(epoch=lambda _loader, _number: self._begin(), counted=self._end_step, closing=self._write)
        loaders.on_feed = self._begin

    def _begin(self) -> None:
        """Before the first batch: what is held now is held without training."""
        if self._before_bytes is None:
            self._before_bytes = reset_peak()

    def _end_step(self) -> None:
        if module_in_use() is not None:
            torch.accelerator.synchronize()
        self._ends.append(perf_counter())
        self._batches.append(self._loaders.num_batches)
        self._loaders.end_step()
        if self._has_enough():
            self._write()
            self._tape.stop()

    def _has_enough(self) -> bool:
        num, seconds = len(self._ends), self._value["seconds"]
        elapsed_s = self._ends[-1] - self._ends[0]
        if num >= self._value["max_steps"] or (num >= _MIN_LONG_STEPS and elapsed_s > _LONG * seconds):
            return True
        if num < self._value["min_steps"] or elapsed_s < seconds:
            return False
        return warm_up(_differences(self._ends)) is not None

    def _write(self) -> None:
        if self._is_written or os.getpid() != self._pid:
            return
        self._is_written = True
        peak, workers = peak_bytes(), _workers_bytes()
        self._tape.write(
            "sized",
            what="steps",
            seconds=_differences(self._ends),
            batches=_differences(self._batches),
            trained=self._loaders.trained(len(self._ends)),
            before_bytes=self._before_bytes,
            peak_bytes=peak + workers,
            device_bytes=device.mem_get_info()[1] if (device := module_in_use()) else None,
        )


def _differences(values: list[Any]) -> list[Any]:
    return [after - before for before, after in pairwise(values)]


def reset_peak() -> int:
    """Begin to look for the most memory that is held from here on, and return what is held now."""
    if module_in_use() is not None:
        torch.accelerator.reset_peak_memory_stats()
        return torch.accelerator.memory_reserved()
    with suppress(OSError):  # not Linux, or not allowed: then the peak is that since the start
        Path("/proc/self/clear_refs").write_text("5")
    return _of_status("VmRSS") or peak_bytes()


def peak_bytes() -> int:
    """Return the most memory that was held: of the device if there is one, else of the process."""
    if module_in_use() is not None:
        return torch.accelerator.max_memory_reserved()
    return process_peak_bytes()


def _of_status(name: str) -> int:
    try:
        found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text(), flags=re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _workers_bytes() -> int:
    """Return what loader workers hold now, their part of what is shared with others."""
    if module_in_use() is not None:
        return 0
    total = 0
    for child in multiprocessing.active_children():
        try:
            text = Path(f"/proc/{child.pid}/smaps_rollup").read_text()
        except OSError:
            continue
        found = re.search(r"^Pss:\s*(\d+) kB", text, flags=re.MULTILINE)
        total += int(found[1]) * 1024 if found else 0
    return total
