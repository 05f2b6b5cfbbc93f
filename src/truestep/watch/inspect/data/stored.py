"""Stored data that reading changes: indexing gives a view, and work in place on it stays.

Owns reading one sample twice, in a forked copy of the process, and slices that a loop cuts from a tensor,
works on in place and comes back to.
"""

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, Subset

from truestep.watch.evidence.facts.loading import SliceChanged, StoredChanged
from truestep.watch.evidence.kinds import Place
from truestep.watch.inspect.data.samples import digest_rows, is_readable
from truestep.watch.inspect.probe.apart import ApartError, run_apart
from truestep.watch.script.leaves import find_tensors
from truestep.watch.script.refs import Ref
from truestep.watch.script.tape import Tape

_MAX_LOADERS, _MAX_BYTES, _MAX_ITEMS = 4, 16 << 20, 64
_PATIENCE_S = 5.0
_MAX_SLICES, _MAX_VISITS = 512, 2048
_IN_PLACE = (
    *("add_.Tensor", "sub_.Tensor", "mul_.Tensor", "div_.Tensor", "add_.Scalar", "mul_.Scalar"),
    *("clamp_.default", "masked_fill_.Scalar", "addcmul_.default", "neg_.default", "pow_.Scalar"),
)


def watch(tape: Tape) -> None:
    """Read a sample of each new dataset twice, and follow slices that are changed in place."""
    tape.listen(epoch=_Datasets(tape).epoch)
    slices = _Slices(tape)
    for name in _IN_PLACE if tape.plan.operations is not None else ():
        tape.read_operation(f"aten.{name}", slices.read_change)
    tape.attend(slices, "forward_begins", "closing")


class _Datasets:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._met: set[int] = set()

    def epoch(self, loader: Any, number: int) -> None:
        if number in self._met or len(self._met) >= _MAX_LOADERS:
            return
        self._met.add(number)
        dataset = loader.dataset
        while type(dataset) is Subset:
            dataset = dataset.dataset
        code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
        if (
            code is None
            or isinstance(dataset, IterableDataset)
            or not self._tape.sites.is_own(code.co_filename)
        ):
            return
        held = list(_held(dataset))
        num_bytes = sum(item.numel() * item.element_size() for item in held)
        if not held or num_bytes > _MAX_BYTES:
            return
        try:
            with self._tape.under_way.copying():
                found = run_apart(partial(self._read_twice, loader.dataset, held), patience_s=_PATIENCE_S)
        except ApartError:  # what cannot be read again shows nothing
            return
        if found is not None:
            facts = StoredChanged(number, *found)
            self._tape.note(facts._replace(place=Place(*facts.place) if facts.place else None))

    def _read_twice(self, dataset: Any, held: list[Tensor]) -> Any:
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


def _held(dataset: Any) -> Iterator[Tensor]:
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


class _Slices:
    """Slices of a larger tensor that a model is given, and what is worked on in place."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._lines: dict[int, int] = {}
        """By the address of a storage: the line that changes a slice of it in place."""
        self._changed_at: dict[int, int] = {}
        """The same by the id of a tensor that slices were cut from."""
        self._bases: dict[int, Any] = {}
        self._digests: dict[tuple[Any, ...], int] = {}
        self._num_visits = 0
        self._num_again: dict[int, int] = {}
        self._num_changed: dict[int, int] = {}

    def read_change(self, _index: int, args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
        """Read what is changed in place, if it is a small part of its storage."""
        changed = args[0]
        if type(changed) is not Tensor or changed.layout is not torch.strided:
            return
        if not changed.requires_grad and changed.is_cpu and changed.dim() > 1:
            storage = changed.untyped_storage()
            if 2 * changed.numel() * changed.element_size() <= storage.nbytes():
                self._lines[storage.data_ptr()] = self._tape.sites.here(1)

    def forward_begins(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._lines or self._num_visits > _MAX_VISITS or torch.compiler.is_compiling():
            return
        given = next((leaf for _, leaf in find_tensors(args or kwargs)), None)
        if given is None or not given._is_view() or given.requires_grad or given.dim() < 2:
            return
        base = given._base
        if base is None or not is_readable(given) or base.numel() < 2 * given.numel():
            return
        address = base.untyped_storage().data_ptr()
        number = id(base)
        if self._bases.setdefault(number, Ref(base))() is not base:
            return
        if address in self._lines:
            self._changed_at.setdefault(number, self._lines[address])
        self._visit(number, given)

    def _visit(self, number: int, given: Tensor) -> None:
        self._num_visits += 1
        key = (number, given.storage_offset(), tuple(given.shape), given.stride())
        digest = hash(tuple(digest_rows(given)[0]))
        before = self._digests.get(key)
        if before is not None:
            self._num_again[number] = self._num_again.get(number, 0) + 1
            self._num_changed[number] = self._num_changed.get(number, 0) + (before != digest)
        if before is not None or len(self._digests) < _MAX_SLICES:
            self._digests[key] = digest

    def closing(self) -> None:
        for number, site in self._changed_at.items():
            place = self._tape.sites.table[site] if site else None
            num_slices = sum(key[0] == number for key in self._digests)
            counts = (self._num_again.get(number, 0), self._num_changed.get(number, 0))
            self._tape.note(SliceChanged(place, num_slices, *counts))
