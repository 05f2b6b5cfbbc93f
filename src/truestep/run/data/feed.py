"""Feeds: iterators of batches that a run consumes, read in this process or by workers.

Owns handing out batches and ending workers. Leaves what a batch holds to `plan`, `fetch` and `stream`.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory as pin

from truestep.run.data.fetch import FetchItem, LaneFetch
from truestep.run.data.plan import Batch, LaneBatch, PlannedStep, Request
from truestep.run.data.stream import State, StreamReader
from truestep.run.data.workers import Workers, fetch_lanes, read_stream

_BLOCK = 32

Steps = Callable[[], Iterator[PlannedStep]]


class Feed:
    """An iterator of batches; `close` it when it is not read to its end, or let it go out of use."""

    def __init__(self, batches: Iterator[Batch], *, standing: list[State], workers: Workers | None) -> None:
        self.batches = batches
        """The iterator itself, without the feed around it."""
        self._standing = standing
        self._workers = workers

    def __iter__(self) -> "Feed":
        return self

    def __next__(self) -> Batch:
        return next(self.batches)

    def state_dict(self) -> dict[str, Any]:
        """Return where a stream stands after the last batch handed out; empty if the cursor says it all."""
        return dict(self._standing[-1]) if self._standing else {}

    def close(self) -> None:
        """End the workers; no further batch comes."""
        self.batches = iter(())
        if self._workers is not None:
            self._workers.close()
            self._workers = None


def feed_samples(
    steps: Steps, fetch: LaneFetch, *, num_workers: int, num_lanes: int, pin_memory: bool
) -> Feed:
    """Return a feed of a dataset with a length; workers read the steps ahead of the batches handed out."""
    if num_workers == 0:
        batches = _batches(steps(), fetch)
        if isinstance(fetch, FetchItem):
            batches = _in_blocks(batches)
        return Feed(_pinned(batches) if pin_memory else batches, standing=[], workers=None)
    workers = fetch_lanes(
        fetch, _requests(steps()), num_workers=num_workers, lanes_per_step=num_lanes, pin_memory=pin_memory
    )
    answered = _batches(steps(), lambda _: next(workers))
    return Feed(_to_the_end(answered, workers), standing=[], workers=workers)


def feed_stream(reader: StreamReader, *, num_workers: int, pin_memory: bool) -> Feed:
    """Return a feed of a stream; it has one reader, so more workers than one do not help."""
    standing = [reader.start]
    if num_workers == 0:
        batches = _standing_after(reader, standing)
        return Feed(_pinned(batches) if pin_memory else batches, standing=standing, workers=None)
    workers = read_stream(reader, pin_memory=pin_memory)
    return Feed(_to_the_end(_standing_after(workers, standing), workers), standing=standing, workers=workers)


def _batches(steps: Iterable[PlannedStep], fetch: LaneFetch) -> Iterator[Batch]:
    for step, epoch, is_epoch_end, num_samples, first, cuts in steps:
        lanes = [
            LaneBatch(lane, stop - start, fetch(Request(step, epoch, lane, first + start, first + stop)))
            for lane, start, stop in cuts
        ]
        yield Batch(step, epoch, is_epoch_end, num_samples, lanes)


def _in_blocks(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Read some batches at once: amid a training loop, whose caches are cold, each would cost thrice."""
    while block := list(islice(batches, _BLOCK)):
        yield from block


def _requests(steps: Iterable[PlannedStep]) -> Iterator[Request]:
    for step, epoch, _, _, first, cuts in steps:
        for lane, start, stop in cuts:
            yield Request(step, epoch, lane, first + start, first + stop)


def _standing_after(read: Iterable[tuple[Batch, State]], standing: list[State]) -> Iterator[Batch]:
    for batch, state in read:
        # The state travels with its batch: what a worker has read ahead does not count.
        standing[:] = [state]
        yield batch


def _to_the_end(batches: Iterator[Batch], workers: Workers) -> Iterator[Batch]:
    try:
        yield from batches
    finally:
        workers.close()


def _pinned(batches: Iterator[Batch]) -> Iterator[Batch]:
    if not torch.accelerator.is_available():
        yield from batches
        return
    for batch in batches:
        yield pin(batch)
