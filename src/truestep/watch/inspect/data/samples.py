"""Samples that loaders return: a digest of each, their labels, and how the loader was made.

Owns the first batches of the first epochs of each loader. Digests are of a few hundred numbers of a sample:
enough to know it again. Batches on a device are not read. Whether a loader serves training or evaluation
follows from the moments around its batches.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import (
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
)

from truestep.watch.evidence.facts.loading import EpochNumber, Labels, LoaderMade, LoaderOrder, SamplesSeen
from truestep.watch.hooks.table import Hook, Observation, calling_frame, put
from truestep.watch.script.nested_tensors import find_tensors
from truestep.watch.script.orders import order_of, orders_of
from truestep.watch.script.tape import Tape

Function = Callable[..., Any]
Array = npt.NDArray[Any]

_NUM_BATCHES = (64, 16, 16)
"""How many batches of the first epoch, the second and the third have digests."""
_NUM_LABELLED = 256
_MAX_SAMPLES, _MAX_ELEMENTS = 4096, 256
_MAX_INDICES = 1 << 20
_NUM_ORDERS = 4
_KEYS = (np.random.Philox(key=7).random_raw(_MAX_ELEMENTS) | 1).astype(np.uint64)
_BITS = np.uint64(11)
"""What is cut from a digest, so that JSON holds it exactly."""
_NUM_DISTINCT, _MAX_KINDS = 8, 64
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_BY_BITS = {torch.bfloat16: torch.int16, torch.bool: torch.uint8}
_READABLE = frozenset((*_FLOATS, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))


def watch(tape: Tape) -> None:
    """Note how loaders are made, and what the batches of each epoch are."""
    book = _Book(tape)
    put(tape, [Hook("torch.utils.data.DataLoader.__init__", _Book.made)], book)
    tape.listen(book, "epoch", "batch", "pausing", "closing")


def _maker_of(loader: Any) -> str:
    """Return the file that makes it: constructors of subclasses, and around it, only pass it on."""
    frame: Any = calling_frame(2)
    while frame.f_back is not None:
        names = frame.f_code.co_varnames
        if not frame.f_code.co_argcount or frame.f_locals.get(names[0]) is not loader:
            break
        frame = frame.f_back
    return str(frame.f_code.co_filename)


def _describe(tape: Tape, loader: Any, is_direct: bool) -> LoaderMade:
    order = order_of(loader)
    return LoaderMade(
        tape.number("loader", loader),
        is_direct=is_direct,
        dataset=id(loader.dataset),
        is_iterable=isinstance(loader.dataset, IterableDataset),
        is_ordered=type(order) is SequentialSampler,
        is_random=type(order).__name__ == "RandomSampler" and not _is_seeded(order),
        num_workers=loader.num_workers,
        has_init=getattr(loader, "worker_init_fn", None) is not None,
    )


def _is_seeded(sampler: Any) -> bool:
    """Whether it has a generator of its own; a class of the user's with this name may not say."""
    return getattr(sampler, "generator", sampler) is not None


@dataclass
class _Page:
    """One epoch of a loader, with the fields of `SamplesSeen`."""

    loader: int
    epoch: int
    num_batches: int = 0
    num_samples: int = 0
    digests: list[list[int]] = field(default_factory=list)
    num_distinct: int = 0
    width: int = 0
    labels: list[Labels] = field(default_factory=list)


class _Book:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._pages: dict[int, _Page] = {}
        self._num_epochs: dict[int, int] = {}

    def made(self, loader: Any, /, *_: Any, **__: Any) -> Observation:
        """A loader is made."""
        yield
        tape = self._tape
        try:
            is_direct = tape.sites.is_own(_maker_of(loader))
            tape.note(_describe(tape, loader, is_direct))
        except Exception as error:  # noqa: BLE001 - samplers and datasets of the user's; written down
            tape.note_trouble("a loader that was made", error)

    def epoch(self, loader: Any, number: int) -> None:
        epoch = self._num_epochs[number] = self._num_epochs.get(number, -1) + 1
        self._close(self._pages.pop(number, None))
        if epoch < len(_NUM_BATCHES):
            self._pages[number] = _Page(number, epoch)
        if epoch < _NUM_ORDERS:
            self._tape.note(_order(loader, number, is_first=epoch == 0))

    def batch(self, number: int, batch: Any) -> None:
        page = self._pages.get(number)
        if page is None:
            return
        page.num_batches += 1
        is_kept = len(page.digests) < _NUM_BATCHES[page.epoch] and page.num_samples < _MAX_SAMPLES
        if is_kept or (page.epoch == 0 and len(page.labels) < _NUM_LABELLED):
            inputs, labels = find_parts(batch)
            if labels is not None:
                _add_labels(page, labels)
            if is_kept and inputs is not None:
                _add_digests(page, inputs)

    def pausing(self) -> None:
        """The next batches are not seen: these are not the whole epoch."""
        for page in self._pages.values():
            page.num_batches += 1

    def closing(self) -> None:
        for page in self._pages.values():
            self._close(page)
        self._pages = {}

    def _close(self, page: _Page | None) -> None:
        if page is not None and page.num_batches:
            self._tape.note(SamplesSeen(**vars(page)))


def _order(loader: Any, number: int, *, is_first: bool) -> LoaderOrder:
    """Return what decides which samples come, and in which order."""
    distributed: EpochNumber | None = None
    for sampler in orders_of(loader):
        if isinstance(sampler, DistributedSampler):
            distributed = EpochNumber(bool(sampler.shuffle), int(sampler.epoch), type(sampler).__name__)
    base, indices = _indices(loader) if is_first else (None, None)
    return LoaderOrder(number, distributed, base, indices)


def _indices(loader: Any) -> tuple[int, list[int] | None]:
    """Return the dataset under all subsets, and which of its samples are taken; None for all."""
    dataset, indices = loader.dataset, None
    order = orders_of(loader)[-1]
    if isinstance(order, SubsetRandomSampler):
        indices = order.indices
    while type(dataset) is Subset:
        inner = dataset.indices
        indices = inner if indices is None else [inner[index] for index in indices]
        dataset = dataset.dataset
    if indices is None or len(indices) > _MAX_INDICES:
        return id(dataset), None
    return id(dataset), [int(index) for index in indices]


def find_parts(batch: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return the tensor that holds the samples, and the one that holds their labels."""
    tensors = [leaf for _, leaf in find_tensors(batch) if leaf.dim() and is_readable(leaf)]
    wide = [item for item in tensors if item.dim() > 1 and item.shape[1:].numel() > 1]
    inputs = next((item for item in wide if item.is_floating_point()), None)
    if inputs is None:
        inputs = next(iter(wide or tensors), None)
    flat = [
        item for item in tensors if item is not inputs and item.numel() == item.shape[0] and item.numel() > 1
    ]
    labels = next((item for item in flat if not item.is_floating_point()), None)
    if labels is None:
        labels = next(iter(flat), None)
    return inputs, labels


def is_readable(tensor: Tensor) -> bool:
    """Whether its values can be read where they are."""
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.dtype in _READABLE
        and tensor.numel() > 0
        and not tensor.is_neg()
    )


def array_of(tensor: Tensor) -> Array:
    """Return the values of a readable tensor without a copy; numbers that NumPy lacks by their bits.

    Not by `numpy()`: what it has shown once cannot be resized any more.
    """
    tensor = tensor.detach()
    if tensor.dtype in _BY_BITS:
        tensor = tensor.view(_BY_BITS[tensor.dtype])
    found: Array = np.from_dlpack(tensor)
    return found


def _add_labels(page: _Page, tensor: Tensor) -> None:
    outlined = _outline(array_of(tensor).reshape(-1))
    if outlined is not None:
        page.labels.append(outlined)


def _outline(values: Array) -> Labels | None:
    """Return how labels lie; None if they are fractions, or of too many kinds."""
    if values.dtype.kind == "f":
        whole = values.astype(np.int64)
        if not np.array_equal(whole, values):
            return None
        values = whole
    counts = Counter(values.tolist())  # NumPy's own way imports what scripts may never need
    if len(counts) > _MAX_KINDS:
        return None
    changes = int(np.count_nonzero(values[1:] != values[:-1]))
    return Labels(changes, int(values[0]), int(values[-1]), dict(sorted(counts.items())))


def _add_digests(page: _Page, tensor: Tensor) -> None:
    rows = _rows(tensor)
    if not page.digests:
        page.width = rows.shape[1]
        page.num_distinct = _num_distinct(rows)
    page.num_samples += len(rows)
    page.digests.append(_digest(rows))


def digest_rows(tensor: Tensor) -> tuple[list[int], int]:
    """Return a digest of each row of a readable tensor, and how many different fractions a row has."""
    rows = _rows(tensor)
    return _digest(rows), _num_distinct(rows)


def _rows(tensor: Tensor) -> Array:
    values = array_of(tensor)
    rows = values.reshape(len(values), -1)
    return np.ascontiguousarray(rows[:, :: _stride(rows.shape[1])])


def _stride(width: int) -> int:
    return -(-width // _MAX_ELEMENTS)


def _digest(rows: Array) -> list[int]:
    if rows.dtype.kind in "fc":
        rows = rows.view(f"u{min(rows.itemsize, 8)}")
    digests = (rows.astype(np.uint64) * _KEYS[np.arange(rows.shape[1]) % _MAX_ELEMENTS]).sum(1)
    found: list[int] = (_mix(digests) >> _BITS).tolist()
    return found


def _mix(values: Array) -> Array:
    values = (values ^ (values >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed: Array = values ^ (values >> np.uint64(32))
    return mixed


def _num_distinct(rows: Array) -> int:
    """Return the least number of different fractions in one of the first samples."""
    if rows.dtype.kind != "f":
        return 0
    first = rows[:_NUM_DISTINCT]
    return min(len(set(row[(row != np.round(row)) & np.isfinite(row)].tolist())) for row in first)
