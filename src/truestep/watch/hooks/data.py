"""Batches handed out by DataLoaders, and the beginnings of epochs.

Owns the loaders' iterators. What workers do in their own processes is not observed.
"""

import weakref
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from truestep.watch.evidence.facts.loading import BatchFetched, EpochBegan, EpochSet, LoaderUsed
from truestep.watch.hooks.table import Observation
from truestep.watch.script.nested_tensors import outline
from truestep.watch.script.tape import Tape
from truestep.watch.script.window import AFTER_CHANGE

_UNKNOWN = -1
_ASKED = "_IterableDataset_len_called"
"""Where a loader of a stream notes that it was asked: torch warns of a wrong length only those who asked."""


class Loaders:
    """Loaders of one class, and their iterators."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._chain = tape.chain
        self._met: set[int] = set()
        self._loader_of: dict[int, tuple[int, Any]] = {}
        self._lengths: dict[int, int | None] = {}
        self._epochs: dict[int, _Epoch] = {}
        tape.listen(pausing=self._expect_ends)

    def observe_epoch(self, loader: Any) -> Observation:
        """Observe the beginning of an epoch."""
        tape, loader_of = self._tape, self._loader_of
        number = tape.number("loader", loader)
        if number not in self._met:
            self._met.add(number)
            self._lengths[number] = None
            try:
                self._lengths[number] = _introduce(tape, loader, number)
            except Exception as error:  # noqa: BLE001 - loaders of the user's; written down
                tape.note_trouble("a loader that begins", error)
        self._epochs[number] = _Epoch(tape.num_steps, self._lengths[number])
        tape.observe_change("epoch", number)
        site = tape.sites.here(3)
        begun = perf_counter_ns()
        result = yield
        address = id(result)
        loader_of[address] = (number, weakref.ref(result, lambda _: loader_of.pop(address, None)))
        tape.mark(EpochBegan(number), site, begun)
        tape.emit("epoch", loader, number)

    def observe_batch(self, iterator: Any) -> Observation:
        """Observe the fetching of a batch."""
        tape = self._tape
        tape.end_if_over()
        begun = perf_counter_ns()
        tape.under_way.is_fetching = True
        try:
            result = yield
        finally:
            tape.under_way.is_fetching = False
        number = self._loader_of.get(id(iterator), (_UNKNOWN, None))[0]
        if number in self._epochs:
            self._epochs[number].num_batches += 1
        tape.mark(BatchFetched(number, outline(result)), tape.sites.here(3), begun)
        if self._chain is not None:
            self._chain.take_batch(result)
        tape.emit("batch", number, result)

    def _expect_ends(self) -> None:
        """Have the last steps of epochs observed: what is left over then goes into the next one."""
        now, window = self._tape.num_steps, self._tape.window
        for epoch in self._epochs.values():
            if epoch.length and epoch.num_batches:
                num_steps = epoch.length * (now - epoch.begun) // epoch.num_batches
                window.starts.add(epoch.begun + num_steps - AFTER_CHANGE)
        self._epochs.clear()

    def observe_set_epoch(self, _sampler: Any, epoch: int) -> None:
        """Observe `set_epoch` of torch's distributed sampler."""
        self._tape.note(EpochSet(epoch))


@dataclass(slots=True)
class _Epoch:
    """An epoch under way."""

    begun: int
    """How many steps had been made."""
    length: int | None
    num_batches: int = 0


def _introduce(tape: Tape, loader: Any, number: int) -> int | None:
    sizes = (loader.batch_size, loader.num_workers, _length(loader, tape))
    tape.note(LoaderUsed(number, type(loader.dataset).__qualname__, *sizes))
    return sizes[-1]


def _length(loader: Any, tape: Tape) -> int | None:
    """Return the number of batches, None if there is none; where only the user's code knows it, unknown."""
    parts = (loader, loader.dataset, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    codes = [getattr(getattr(type(item), "__len__", None), "__code__", None) for item in parts]
    if tape.plan.inspect and any(code is not None and tape.sites.is_own(code.co_filename) for code in codes):
        return _UNKNOWN
    asked = vars(loader).get(_ASKED)
    try:
        return len(loader)
    except Exception:  # noqa: BLE001 - a stream has none, and a class of the user's may raise anything
        return None
    finally:
        if _ASKED in vars(loader):
            vars(loader)[_ASKED] = asked
