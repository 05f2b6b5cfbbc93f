"""Generators in the workers of loaders: in which state each worker begins, and whether its samples draw.

Owns what is looked at in workers: once in each, around its first batch. It is left in a file beside the tape,
which the process that made the workers reads when it ends. Workers that are not forked are not observed.
"""

import functools
import hashlib
import itertools
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from truestep.watch.evidence.facts.loading import (
    GeneratorPlace,
    GeneratorState,
    WorkerGenerator,
    WorkerState,
)
from truestep.watch.evidence.kinds import named
from truestep.watch.evidence.moment import unnamed
from truestep.watch.hooks.table import Hook, Observation, drop_frames, put, unseen
from truestep.watch.script.tape import Tape

Function = Callable[..., Any]
_MAX_DEPTH, _MAX_OBJECTS, _MAX_ITEMS = 4, 200, 16
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_UNNAMED = GeneratorPlace(None, None, None)
_PLAIN = (str, bytes, int, float, complex, bool, type(None), np.ndarray, torch.Tensor, type)


def watch(tape: Tape) -> None:
    """Look into each worker of each dataset the first time that workers are started for it."""
    scout = _Scout(tape)
    target = "torch.utils.data.dataloader._DatasetKind.create_fetcher"
    put(tape, [Hook(target, _Scout.created, is_everywhere=True)], scout)
    tape.listen(scout, "epoch", "closing")


class _Left:
    """Files beside the tape, which the process that starts workers reads.

    A worker may be killed at any moment, so a file is there as a whole or not at all.
    """

    def __init__(self, tape: Tape) -> None:
        self._pid = os.getpid()
        self._folder = Path(tape.path).parent

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is another process than the one that this was made in."""
        return os.getpid() != self._pid

    def write(self, value: Any) -> None:
        """Leave something, in place of what this worker has left before."""
        path = self._folder / f"worker-{self._pid}-{os.getpid()}.json"
        path.with_suffix(".part").write_text(json.dumps(value))
        path.with_suffix(".part").rename(path)

    def read(self) -> Iterator[Any]:
        """Yield what the workers have left."""
        for path in sorted(self._folder.glob(f"worker-{self._pid}-*.json")):
            yield json.loads(path.read_text())


class _Scout:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._left = _Left(tape)
        self._loaders: dict[int, int] = {}

    def created(self, /, *_: Any, **__: Any) -> Observation:
        """A fetcher is made, in the process that shall use it."""
        result = yield
        try:
            if self.is_asked(result.dataset):
                result.fetch = unseen(_wrap_fetch(result, self), result.fetch)
        except Exception:  # noqa: BLE001 - a worker must not fail by being looked at
            pass

    def epoch(self, loader: Any, number: int) -> None:
        """Workers that are started later find their dataset here, and know that they are not the first."""
        if not loader.num_workers or id(loader.dataset) in self._loaders:
            return
        self._loaders[id(loader.dataset)] = number

    def is_asked(self, dataset: Any) -> bool:
        """Whether this process is a worker that shall be looked into."""
        return (
            self._left.is_elsewhere
            and get_worker_info() is not None
            and id(dataset) not in self._loaders
            and not isinstance(dataset, IterableDataset)  # those may share out one common order
        )

    def find(self, maker: Any) -> list[tuple[GeneratorPlace, Any]]:
        """Return all generators that a loader's or a fetcher's code can reach, with where they are kept."""
        return list(_generators((maker.dataset, maker.collate_fn), self._tape.sites.is_own))

    def write(self, dataset: Any, found: list[WorkerGenerator]) -> None:
        """Leave what was seen for the process that started this worker, which knows the loader's number."""
        self._loaders[id(dataset)] = -1
        facts = WorkerState(id(dataset), found)
        self._left.write(named(facts))

    def closing(self) -> None:
        """Note what the workers have left."""
        for kind, facts in self._left.read():
            dataset, generators = unnamed(kind, facts)
            self._tape.note(WorkerState(self._loaders.get(dataset, -1), generators))


def _wrap_fetch(fetcher: Any, scout: _Scout) -> Function:
    fetch = fetcher.fetch
    before = [(place, _state(item)) for place, item in scout.find(fetcher)]

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        vars(fetcher).pop("fetch", None)
        try:
            result = fetch(*args, **kwargs)
        except BaseException as error:
            drop_frames(error)
            raise
        try:
            after = {place: _state(item) for place, item in scout.find(fetcher)}
            found = [WorkerGenerator(place, state, after.get(place)) for place, state in before]
            scout.write(fetcher.dataset, found)
        except Exception:  # noqa: BLE001 - as above
            pass
        return result

    return wrapper


def _state(generator: Any) -> GeneratorState:
    if isinstance(generator, torch.Generator):
        return GeneratorState(_digest(generator.get_state().numpy().tobytes()), str(generator.initial_seed()))
    if isinstance(generator, random.Random):
        state = generator.getstate()
        return GeneratorState(_digest(repr(state).encode()), _digest(repr(state[1][:-1]).encode()))
    known = (
        generator.bit_generator.state
        if isinstance(generator, np.random.Generator)
        else generator.get_state(legacy=False)
    )
    inner = known["state"]
    kept = inner.get("inc", inner)
    kept = kept["key"].tobytes() if isinstance(kept, dict) and "key" in kept else repr(kept).encode()
    with np.printoptions(threshold=sys.maxsize):
        return GeneratorState(_digest(repr(known).encode()), _digest(kept))


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]


def _generators(
    roots: tuple[Any, ...], is_own: Callable[[str], bool]
) -> Iterator[tuple[GeneratorPlace, Any]]:
    for name, item in (
        ("numpy.random", np.random.mtrand._rand),
        ("random", random._inst),
        ("torch", torch.default_generator),
    ):
        yield GeneratorPlace(None, name, None), item
    met: set[int] = set()
    waiting: list[tuple[Any, int]] = [(root, 0) for root in roots]
    while waiting and len(met) < _MAX_OBJECTS:
        thing, depth = waiting.pop(0)
        if id(thing) in met or isinstance(thing, _PLAIN) or depth > _MAX_DEPTH:
            continue
        met.add(id(thing))
        for place, item in _reached(thing, is_own):
            if isinstance(item, _GENERATORS):
                if id(item) not in met and item is not torch.default_generator:
                    met.add(id(item))
                    yield place, item
            else:
                waiting.append((item, depth + 1))


def _reached(thing: Any, is_own: Callable[[str], bool]) -> Iterator[tuple[GeneratorPlace, Any]]:
    """Yield what an object holds, and what the functions of its class read from their module."""
    if isinstance(thing, list | tuple | dict):
        # Not all of them: touching the items of a large list in a worker copies their memory.
        items = iter(thing.values() if isinstance(thing, dict) else thing)
        for item in list(itertools.islice(items, _MAX_ITEMS)):
            yield _UNNAMED, item
    elif isinstance(thing, functools.partial):
        yield from _reached([thing.func, *thing.args, *thing.keywords.values()], is_own)
    elif isinstance(thing, MethodType):
        yield from _reached([thing.__self__, thing.__func__], is_own)
    elif isinstance(thing, FunctionType):
        yield from _reached_by_function(thing)
    elif hasattr(thing, "__dict__"):
        yield from _reached_by_object(thing, is_own)


def _reached_by_object(thing: Any, is_own: Callable[[str], bool]) -> Iterator[tuple[GeneratorPlace, Any]]:
    kind = type(thing)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    is_users = file is not None and is_own(file)
    for name, item in list(vars(thing).items()):
        yield GeneratorPlace(kind.__qualname__, name, file if is_users else None), item
    for name, item in list(vars(kind).items()) if is_users else ():
        if isinstance(item, _GENERATORS):
            yield GeneratorPlace(kind.__qualname__, name, file), item
        elif isinstance(item, FunctionType) and name != "__init__":
            yield from _reached_by_function(item)


def _reached_by_function(function: FunctionType) -> Iterator[tuple[GeneratorPlace, Any]]:
    code = function.__code__
    file = os.path.abspath(code.co_filename)  # noqa: PTH100 - resolves no link
    for name in code.co_names:
        item = function.__globals__.get(name)
        if isinstance(item, (*_GENERATORS, FunctionType)):
            yield GeneratorPlace(None, name, file), item
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield GeneratorPlace(None, name, file), cell.cell_contents
        except ValueError:  # not filled yet
            continue
