"""Batches handed out by DataLoaders, and the beginnings of epochs.

Owns the loaders' iterators. What workers do in their own processes is not observed.
"""

import sys
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.data import dataloader as loading

from truestep.watch.chain import Chain
from truestep.watch.leaves import outline
from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

Function = Callable[..., Any]
_UNKNOWN = -1
_ASKED = "_IterableDataset_len_called"
"""Where a loader of a stream notes that it was asked: torch warns of a wrong length only those who asked."""


def watch(tape: Tape, chain: Chain | None, wraps: Wraps) -> None:  # limits: private to this package
    """Observe torch's DataLoader, and `set_epoch` of its distributed sampler."""
    _watch_class(tape, chain, wraps, DataLoader, loading._BaseDataLoaderIter)
    wraps.put("set_epoch", lambda set_epoch: _wrap_set_epoch(set_epoch, tape), DistributedSampler)


def watch_stateful(tape: Tape) -> None:
    """Observe torchdata's StatefulDataLoader, which has iterators of its own."""
    module = sys.modules["torchdata.stateful_dataloader.stateful_dataloader"]
    chain = tape.chain if isinstance(tape.chain, Chain) else None
    _watch_class(tape, chain, Wraps(tape), module.StatefulDataLoader, module._BaseDataLoaderIter)


def _watch_class(tape: Tape, chain: Chain | None, wraps: Wraps, loader: Any, iterator: Any) -> None:
    loader_of: dict[int, tuple[int, Any]] = {}
    wraps.put("__iter__", lambda begin: _wrap_iter(begin, tape, loader_of), loader)
    wraps.put("__next__", lambda fetch: _wrap_next(fetch, tape, chain, loader_of), iterator)


def _wrap_iter(begin: Function, tape: Tape, loader_of: dict[int, tuple[int, Any]]) -> Function:
    met: set[int] = set()

    def __iter__(self: Any) -> Any:  # noqa: N807
        if not tape.is_on:
            try:
                return begin(self)
            except BaseException as error:
                drop_frame(error)
                raise
        number = tape.number("loader", self)
        if number not in met:
            met.add(number)
            try:
                _introduce(tape, self, number)
            except Exception as error:  # noqa: BLE001 - loaders of the user's; written down
                tape.note_trouble("a loader that begins", error)
        key = ("epoch", tape.sites.here(), number)
        begun = perf_counter_ns()
        try:
            result = begin(self)
        except BaseException as error:
            drop_frame(error)
            raise
        address = id(result)
        loader_of[address] = (number, weakref.ref(result, lambda _: loader_of.pop(address, None)))
        tape.mark(key, begun)
        tape.tell("epoch", self, number)
        return result

    return __iter__


def _introduce(tape: Tape, loader: Any, number: int) -> None:
    parts = (loader, loader.dataset, getattr(loader, "sampler", None))
    names = [type(item).__qualname__ for item in parts]
    tape.note("loader", number, *names, loader.batch_size, loader.num_workers, _length(loader, tape))


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


def _wrap_next(
    fetch: Function, tape: Tape, chain: Chain | None, loader_of: dict[int, tuple[int, Any]]
) -> Function:
    sites = tape.sites
    unknown = (_UNKNOWN, None)
    told = tape.listeners["batch"]

    def __next__(self: Any) -> Any:  # noqa: N807
        if not tape.is_on:
            try:
                return fetch(self)
            except BaseException as error:
                drop_frame(error)
                raise
        if tape.is_over:
            tape.end_script()
        begun = perf_counter_ns()
        tape.is_fetching = True
        try:
            result = fetch(self)
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            tape.is_fetching = False
        number = loader_of.get(id(self), unknown)[0]
        tape.mark(("batch", sites.here(), number, outline(result)), begun)
        if chain is not None:
            chain.take_batch(result)
        if told:
            tape.tell("batch", number, result)
        return result

    return __next__


def _wrap_set_epoch(set_epoch: Function, tape: Tape) -> Function:
    def wrapper(self: Any, epoch: int) -> Any:
        tape.note("set_epoch", epoch)
        try:
            return set_epoch(self, epoch)
        except BaseException as error:
            drop_frame(error)
            raise

    return wrapper
