"""Samples that are read twice: whether a dataset gives another input for the same label.

Owns the reading, in a forked copy of the process. Which loaders evaluate is left to the rules.
"""

from functools import partial
from typing import Any

import torch
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from truestep.watch.evidence.facts.loading import SamplesRedrawn
from truestep.watch.inspect.data.samples import find_parts
from truestep.watch.inspect.probe.apart import ApartError, run_apart
from truestep.watch.script.orders import order_of
from truestep.watch.script.tape import Tape

_MAX_LOADERS, _NUM_SAMPLES = 4, 8
_PATIENCE_S = 5.0


def watch(tape: Tape) -> None:
    """Read the first samples of each loader twice when it begins its first epoch."""
    tape.listen(epoch=_Redraws(tape).epoch)


class _Redraws:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._met: set[int] = set()

    def epoch(self, loader: Any, number: int) -> None:
        if number in self._met or len(self._met) >= _MAX_LOADERS:
            return
        self._met.add(number)
        is_stream = isinstance(loader.dataset, IterableDataset)
        if is_stream or type(order_of(loader)) not in (SequentialSampler, RandomSampler):
            return
        try:
            with self._tape.under_way.copying():
                found = run_apart(partial(_read_twice, loader), patience_s=_PATIENCE_S)
        except ApartError:  # what cannot be read again shows nothing
            return
        if found is not None:
            self._tape.note(SamplesRedrawn(number, *found))


def _read_twice(loader: Any) -> tuple[int, int] | None:
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
