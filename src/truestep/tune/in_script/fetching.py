"""What batches cost the processors, in the script's process and in the workers of its loaders.

Owns that sum, and the moments of batches that `truestep.Loader` reads without workers. Runs in the script's
process.
"""

import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

from truestep.watch.evidence.facts.loading import BatchFetched, LoaderUsed
from truestep.watch.hooks.table import Hook, Observation, put
from truestep.watch.script.tape import Tape

_OURS = -2
"""The number of our own loader: those of torch's count from 0."""


class Fetch:
    """Sums up from `begin` to `end`."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._used_ns = 0
        self._is_on = self._has_met = False
        self._workers: dict[int, float | None] = {}
        """What each had used when the count began; None for one that was met later."""
        import_module("truestep.run.data.loader")
        put(tape, _HOOKS, self)

    def begin(self) -> None:
        """Begin to count."""
        self._used_ns, self._is_on = 0, True
        used = {pid: _cpu_s_of(pid) for pid in self._workers}
        # Those that have ended since are left out.
        self._workers = {pid: used_s for pid, used_s in used.items() if used_s is not None}

    def end(self) -> tuple[float, float | None]:
        """Return the seconds of both; None for the workers' if some came or went on the way."""
        self._is_on = False
        used = [(_cpu_s_of(pid), before) for pid, before in self._workers.items()]
        known = [now - before for now, before in used if now is not None and before is not None]
        return self._used_ns / 1e9, sum(known) if len(known) == len(used) else None

    def observe_next(self, iterator: Any) -> Observation:
        """Sum up what a batch takes, and meet the workers that make it."""
        begun = process_time_ns() if self._is_on else None
        try:
            yield
        finally:
            if begun is not None:
                self._used_ns += process_time_ns() - begun
            for worker in getattr(iterator, "_workers", ()):
                self._workers.setdefault(worker.pid, None)

    def observe_feed(self, loader: Any, /, *_: Any, **__: Any) -> Observation:
        """Mark the batches of our own loader, if it makes them in this process."""
        started = yield
        if loader.workers == 0:
            self._meet(loader)
            started.batches = self._marked(started.batches)

    def _meet(self, loader: Any) -> None:
        if not self._has_met:
            self._has_met = True
            names = (type(loader).__qualname__, type(loader.dataset).__qualname__, "")
            self._tape.note(LoaderUsed(_OURS, *names, loader.batch_size, 0, None))

    def _marked(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            begun, used = perf_counter_ns(), process_time_ns()
            try:
                batch = next(batches)
            except StopIteration:
                return
            if self._is_on:
                self._used_ns += process_time_ns() - used
            self._tape.mark(BatchFetched(_OURS, ()), self._tape.sites.here(), begun)
            yield batch


_HOOKS = (
    Hook("torch.utils.data.dataloader._BaseDataLoaderIter.__next__", Fetch.observe_next),
    Hook("truestep.run.data.loader.Loader.feed", Fetch.observe_feed),
)


def _cpu_s_of(pid: int) -> float | None:
    """Return what a process has used; None where the system does not tell, or it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
