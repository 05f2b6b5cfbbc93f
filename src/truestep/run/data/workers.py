"""Worker processes that read ahead: torch's DataLoader, with requests for lanes instead of samples.

Owns how workers start, what they do with signals, and how they end. What they read is given to them.
"""

import gc
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from truestep.run.data.fetch import LaneFetch
from truestep.run.data.plan import Request
from truestep.run.data.stream import StreamReader

_STEPS_AHEAD = 2
_LOOK_FOR_PARENT_S = 0.5


class _Lanes(Dataset[Any]):
    def __init__(self, fetch: LaneFetch) -> None:
        self._fetch = fetch

    def __getitem__(self, request: Request) -> Any:
        return self._fetch(request)


class _Stream(IterableDataset[Any]):
    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._reader)


def _as_it_is(data: Any) -> Any:
    return data


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    if os.getppid() != parent.pid:
        parent.join()  # a fork server is in between, which outlives the process that trains
    while os.getppid() == parent.pid:
        time.sleep(_LOOK_FOR_PARENT_S)
    os._exit(1)


def _on_start(_: int, *, dtype: torch.dtype) -> None:
    # A worker whose parent was killed can wait for ever to hand over its last batch: torch's own watchdog
    # only looks while a worker waits for requests.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Ctrl-C in a terminal goes to the whole group: the process that trains decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A forked worker has its parent's handler, which would save a snapshot here.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # bits: a spawned worker does not inherit it, a forked one and the parent itself have it.
    torch.set_default_dtype(dtype)


class Workers:
    """Results of worker processes, in the order of the requests; the processes end with `close`."""

    def __init__(self, results: Iterator[Any]) -> None:
        self._results = results

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._results)

    def close(self) -> None:
        """End the processes now, instead of when the last reference to them goes."""
        # torch offers no public call for it, and a traceback may keep the iterator alive for long.
        self._results._shutdown_workers()  # type: ignore[attr-defined]


def fetch_lanes(
    fetch: LaneFetch, requests: Iterable[Request], *, num_workers: int, lanes_per_step: int, pin_memory: bool
) -> Workers:
    """Start workers that fetch the requested lanes, in order and across epochs."""
    ahead = max(2, -(-_STEPS_AHEAD * lanes_per_step // num_workers))
    return _start(
        _Lanes(fetch), requests, num_workers=num_workers, prefetch_factor=ahead, pin_memory=pin_memory
    )


def read_stream(reader: StreamReader, *, pin_memory: bool) -> Workers:
    """Start the one worker that reads a stream."""
    return _start(_Stream(reader), None, num_workers=1, prefetch_factor=_STEPS_AHEAD, pin_memory=pin_memory)


def _start(
    dataset: Dataset[Any], requests: Any, *, num_workers: int, prefetch_factor: int, pin_memory: bool
) -> Workers:
    with warnings.catch_warnings():
        # The number of workers is the user's, to be measured; torch only compares it with the cores.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        loader = DataLoader(
            dataset,
            batch_size=None,
            sampler=requests,
            num_workers=num_workers,
            collate_fn=_as_it_is,
            pin_memory=pin_memory and torch.accelerator.is_available(),
            worker_init_fn=partial(_on_start, dtype=torch.get_default_dtype()),
            prefetch_factor=prefetch_factor,
            # bits: without its own generator, starting the workers draws from the global one.
            generator=torch.Generator(),
        )
        # A worker must not collect what its parent left behind: to destroy a process group of which the
        # threads were not forked crashes it, or never ends.
        gc.freeze()
        try:
            return Workers(iter(loader))
        finally:
            gc.unfreeze()
