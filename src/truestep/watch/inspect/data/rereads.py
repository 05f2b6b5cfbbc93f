"""Samples that are read twice, in a forked copy: whether they differ, and whether the stored data change.

Owns the reading, when a loader begins its first epoch. Which loaders evaluate is left to the rules. Indexing
gives a view, so that work in place on a sample stays in the data.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler, Subset

from truestep.watch.evidence.facts.loading import SamplesRedrawn, StoredChanged
from truestep.watch.evidence.kinds import Place
from truestep.watch.inspect.data.samples import find_parts, is_readable
from truestep.watch.inspect.probe.forked_copy import ApartError, run_apart
from truestep.watch.script.nested_tensors import find_tensors
from truestep.watch.script.orders import order_of
from truestep.watch.script.tape import Tape

_MAX_LOADERS, _MAX_BYTES, _MAX_ITEMS, _NUM_SAMPLES = 4, 16 << 20, 64, 8
_PATIENCE_S = 5.0


def watch(tape: Tape) -> None:
    """Read samples of each new loader twice."""
    tape.listen(_Rereads(tape), "epoch")


class _Rereads:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._met: set[int] = set()

    def epoch(self, loader: Any, number: int) -> None:
        if (
            number in self._met
            or len(self._met) >= _MAX_LOADERS
            or isinstance(loader.dataset, IterableDataset)
        ):
            return
        self._met.add(number)
        held = self._held(loader.dataset)
        if held and sum(item.numel() * item.element_size() for item in held) <= _MAX_BYTES:
            changed = self._apart(partial(self._change, loader.dataset, held))
            if changed is not None:
                facts = StoredChanged(number, *changed)
                self._tape.note(facts._replace(place=Place(*facts.place) if facts.place else None))
        if type(order_of(loader)) in (SequentialSampler, RandomSampler):
            redrawn = self._apart(partial(_redraw, loader))
            if redrawn is not None:
                self._tape.note(SamplesRedrawn(number, *redrawn))

    def _apart(self, act: Callable[[], Any]) -> Any:
        """Return what a function finds in a copy of the process; what cannot be read again shows nothing."""
        try:
            with self._tape.under_way.copying():
                return run_apart(act, patience_s=_PATIENCE_S)
        except ApartError:
            return None

    def _held(self, dataset: Any) -> list[Tensor]:
        """Return what a dataset of the user's stores."""
        while type(dataset) is Subset:
            dataset = dataset.dataset
        code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
        is_own = code is not None and self._tape.sites.is_own(code.co_filename)
        return list(_stored(dataset)) if is_own else []

    def _change(self, dataset: Any, held: list[Tensor]) -> Any:
        """Return how many stored values two readings of one sample changed, with an example, and the line."""
        first = [item.clone() for item in held]
        size = _size_of(dataset[0])
        second = [item.clone() for item in held]
        lines = _Lines(held, self._tape)
        lines.trace(partial(dataset.__getitem__, 0))
        pairs = list(zip(first, second, held, strict=True))
        num_first = [int((one != two).sum()) for one, two, _ in pairs]
        num_second = [int((two != three).sum()) for _, two, three in pairs]
        most = max(range(len(pairs)), key=lambda place: num_first[place])
        if not num_first[most]:
            return 0, 0, size, [], None
        place = int((pairs[most][0] != pairs[most][1]).flatten().nonzero()[0])
        values = [float(item.flatten()[place]) for item in pairs[most]]
        return num_first[most], num_second[most], size, values, lines.found


def _redraw(loader: Any) -> tuple[int, int] | None:
    """Return how many samples were read, and how many were other ones; None if labels are, too."""
    places = range(min(_NUM_SAMPLES, len(loader.dataset)))
    (first, label), (second, again) = (
        find_parts(loader.collate_fn([loader.dataset[place] for place in places])) for _ in range(2)
    )
    if first is None or second is None or label is None or again is None or first.shape != second.shape:
        return None
    if not first.is_floating_point() or not torch.equal(label, again):
        return None
    return len(first), int((first != second).flatten(1).any(1).sum())


def _stored(dataset: Any) -> Iterator[Tensor]:
    """Yield what a dataset stores, as tensors that share its memory."""
    numpy = sys.modules.get("numpy")
    for value in getattr(dataset, "__dict__", {}).values():
        many = value[:_MAX_ITEMS] if isinstance(value, list | tuple) else (value,)
        for item in many:
            if isinstance(item, Tensor) and is_readable(item) and not item.requires_grad:
                yield item
            elif numpy is not None and type(item) is numpy.ndarray and item.dtype.kind in "fiu" and item.size:
                try:
                    yield torch.from_numpy(item)
                except (TypeError, ValueError):  # other byte orders, negative strides
                    continue


def _size_of(sample: Any) -> int:
    """Return how many numbers the largest tensor of a sample has."""
    return max((leaf.numel() for _, leaf in find_tensors(sample)), default=0)


class _Lines:
    """The line of the user's after which stored data were first different."""

    def __init__(self, held: list[Tensor], tape: Tape) -> None:
        self._held = held
        self._before = [item.clone() for item in held]
        self._is_own = tape.sites.is_own
        self._last: tuple[str, int, str] | None = None
        self.found: tuple[str, int, str] | None = None

    def trace(self, act: Any) -> None:
        """Call a function and look after each line; the process is a copy, and ends soon."""
        sys.settrace(self._enter)
        try:
            act()
        finally:
            sys.settrace(None)
        self._look()

    def _enter(self, frame: Any, _event: str, _arg: Any) -> Any:
        return self._see if self._is_own(frame.f_code.co_filename) else None

    def _see(self, frame: Any, _event: str, _arg: Any) -> Any:
        self._look()
        self._last = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        return self._see

    def _look(self) -> None:
        if self.found is None and self._last is not None:
            pairs = zip(self._held, self._before, strict=True)
            if any(not torch.equal(item, before) for item, before in pairs):
                self.found = self._last
