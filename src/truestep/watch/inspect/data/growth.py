"""The memory of loader workers: what each holds for itself, and the containers of its dataset.

Owns what is looked at in workers, after ever more batches. It is left in files beside the tape, which the
process that made the workers reads when it ends. Workers that are not forked are not observed.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from truestep.memory import own_bytes
from truestep.watch.evidence.facts.course import Held, WorkerCourse, WorkerPoint
from truestep.watch.hooks.table import Hook, Observation, drop_frames, put, unseen
from truestep.watch.inspect.data.left import Left
from truestep.watch.script.tape import Tape

Function = Callable[..., Any]
_FIRST, _FACTOR = 4, 4
"""After how many batches a worker is looked at first, and how many times as many each time after that."""
_MAX_HELD, _MAX_DEPTH = 16, 4


def watch(tape: Tape) -> None:
    """Look into the workers of all loaders."""
    growth = _Growth(tape)
    target = "torch.utils.data.dataloader._DatasetKind.create_fetcher"
    put(tape, [Hook(target, _Growth.created, is_everywhere=True)], growth)
    tape.attend(growth, "epoch", "closing")


class _Growth:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._left = Left(tape, "growth")
        self._loaders: dict[int, tuple[int, str]] = {}
        self._num_batches, self._next = 0, _FIRST
        self._points: list[WorkerPoint] = []

    def created(self, /, *_: Any, **__: Any) -> Observation:
        """A fetcher is made, in the process that shall use it."""
        result = yield
        if self._left.is_elsewhere and get_worker_info() is not None:
            kind: Any = type(result)
            kind.fetch = unseen(self._wrap(kind.fetch), kind.fetch)

    def _wrap(self, fetch: Function) -> Function:
        def wrapper(fetcher: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = fetch(fetcher, *args, **kwargs)
            except BaseException as error:
                drop_frames(error)
                raise
            self._num_batches += 1
            if self._num_batches >= self._next:
                self._next *= _FACTOR
                self._look(fetcher.dataset)
            return result

        return wrapper

    def _look(self, dataset: Any) -> None:
        """Leave what this worker holds for the process that started it, which knows the loader's number."""
        try:
            held = list(_containers(dataset))[:_MAX_HELD]
            self._points.append(WorkerPoint(self._num_batches, own_bytes() or 0, held))
            self._left.write([id(dataset), self._points])
        except Exception:  # noqa: BLE001 - a worker must not fail by being looked at
            pass

    def epoch(self, loader: Any, number: int) -> None:
        """Workers are about to start: their dataset has this address in them too."""
        if loader.num_workers:
            self._loaders.setdefault(
                id(loader.dataset), (number, type(_innermost(loader.dataset)).__qualname__)
            )

    def closing(self) -> None:
        """Note what the workers have left."""
        for dataset, points in self._left.read():
            loader, name = self._loaders.get(dataset, (-1, ""))
            read = [WorkerPoint(num, size, [Held(*item) for item in held]) for num, size, held in points]
            self._tape.note(WorkerCourse(loader, name, read))


def _innermost(dataset: Any) -> Any:
    """Return the dataset under subsets and the like."""
    for _ in range(_MAX_DEPTH):
        inner = getattr(dataset, "__dict__", {}).get("dataset")
        if inner is None:
            break
        dataset = inner
    return dataset


def _containers(dataset: Any) -> Iterator[Held]:
    """Yield the containers of Python objects that a dataset has, by attribute."""
    for name, value in list(getattr(_innermost(dataset), "__dict__", {}).items()):
        if type(value) in (list, dict, tuple, set) or isinstance(value, dict):
            yield Held(name, type(value).__name__, len(value))
        elif isinstance(value, np.ndarray) and value.dtype == object:
            yield Held(name, "array of objects", int(value.size))
