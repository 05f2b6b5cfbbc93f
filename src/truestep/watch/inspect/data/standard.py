"""Standardized inputs: sets of rows whose columns have a mean of exactly 0 and a deviation of exactly 1.

Owns finding the set that a model's input was taken from, in a few forward passes of training and evaluation:
the dataset of the loader, the tensor that was indexed, or the memory that the input is a slice of.
"""

import weakref
import zlib
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from truestep.watch.evidence.facts.loading import SetStandardized
from truestep.watch.inspect.data.inputs import first_float
from truestep.watch.inspect.data.samples import array_of
from truestep.watch.script import parts
from truestep.watch.script.host import on_host
from truestep.watch.script.tape import Tape

_MAX_READ, _MAX_NOTED, _MAX_MODELS, _MAX_KEPT = 1 << 21, 3, 8, 16
_MAX_DATASETS = 2
_MAX_LISTED, _MAX_COLUMNS, _MAX_DEPTH = 8192, 32, 4
_LEAST_ROWS, _LEAST_VALUES, _LEAST_WIDTH = 30, 10, 8
_TOLERANCE, _PART_TOLERANCE, _SPREAD_TOLERANCE = 1e-4, 2e-6, 0.02
_TABLE = 2
_AXES: dict[int, tuple[tuple[int, ...], ...]] = {2: ((0,),), 3: ((0,), (0, 1)), 4: ((0, 2, 3),)}
"""By the number of axes: those that means are over."""


def watch(tape: Tape) -> None:
    """Note standardized sets that models are trained on or evaluated with."""
    sets = _Sets(tape)
    tape.listen_near(forward_begins=sets.train)
    tape.attend(sets, "epoch", "batch")
    if tape.plan.operations is not None:
        for name in ("index.Tensor", "index_select.default"):
            tape.read_operation(f"aten.{name}", sets.indexed)


class _Sets:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._datasets: dict[int, Any] = {}
        """Of the last loaders that began an epoch."""
        self._last: int | None = None
        """The loader that handed out the last batch."""
        self._indexed: dict[int, tuple[StorageWeakRef, weakref.ref[Tensor]]] = {}
        """By the memory of some of its rows: what was indexed."""
        self._num_trained: dict[int, int] = {}
        self._num_scored: dict[int, int] = {}
        """Of models that are trained on standardized sets; others are not looked at in evaluation."""

    def epoch(self, loader: Any, number: int) -> None:
        self._datasets.pop(number, None)
        self._datasets[number] = getattr(loader, "dataset", None)
        if len(self._datasets) > _MAX_DATASETS:
            del self._datasets[next(iter(self._datasets))]

    def batch(self, number: int, _batch: Any) -> None:
        self._last = number

    def indexed(self, _index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], result: Any) -> None:
        """Rows of a tensor are chosen."""
        source = args[0]
        is_plain = source.layout is torch.strided and source.is_floating_point()
        if is_plain and source.dim() >= _TABLE and len(source) >= _LEAST_ROWS:
            storage = result.untyped_storage()
            self._indexed[storage._cdata] = (StorageWeakRef(storage), weakref.ref(source))
            if len(self._indexed) > _MAX_KEPT:
                del self._indexed[next(iter(self._indexed))]

    def train(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._tape.is_looked_at and parts.is_training(module) and torch.is_grad_enabled():
            self._look(self._num_trained, module, args or kwargs, is_trained=True)

    def score(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if parts.is_training(module) and torch.is_grad_enabled():
            return
        if self._tape.number("model", module) in self._num_scored:
            self._look(self._num_scored, module, args or kwargs, is_trained=False)
            if min(self._num_scored.values()) >= _MAX_NOTED:
                self._tape.ignore(self.score)

    def _look(self, nums: dict[int, int], module: nn.Module, given: Any, *, is_trained: bool) -> None:
        number = self._tape.number("model", module)
        if nums.get(number, 0) >= _MAX_NOTED or (number not in nums and len(nums) >= _MAX_MODELS):
            return
        nums[number] = nums.get(number, 0) + 1
        tensor = None if torch.compiler.is_compiling() else first_float(given)
        if tensor is None or not (tensor.is_cpu or self._tape.is_looked_at):
            return
        for rows in self._sets_of(tensor):
            facts = _measure(number, is_trained, rows)
            if facts is not None:
                self._tape.note(facts)
                if is_trained and number not in self._num_scored:
                    self._follow(number)
                return

    def _follow(self, number: int) -> None:
        """Look at evaluations of a model too, now that it is trained on such a set."""
        if min(self._num_scored.values(), default=_MAX_NOTED) >= _MAX_NOTED:
            self._tape.listen(forward_begins=self.score)
        self._num_scored[number] = 0

    def _sets_of(self, tensor: Tensor) -> Iterator[Any]:
        """Yield arrays of which a model's input may be some rows."""
        shape = tuple(tensor.shape[1:])
        _, source = self._indexed.get(tensor.untyped_storage()._cdata, (None, lambda: None))
        found = source()
        whole = _whole(tensor)
        for item in (found, whole):
            if item is not None and item.numel() <= _MAX_READ and tuple(item.shape[1:]) == shape:
                yield array_of(on_host(item.detach()))
        dataset = None if self._last is None else self._datasets.get(self._last)
        if dataset is not None:
            first = array_of(on_host(tensor[:1].detach())).astype(np.float32)
            for rows in _stored(dataset, shape):
                if bool((rows.astype(np.float32) == first).reshape(len(rows), -1).all(1).any()):
                    yield rows


def _whole(tensor: Tensor) -> Tensor | None:
    """Return all rows of the memory that a tensor is a slice of."""
    width = prod(tensor.shape[1:])
    if not tensor.is_contiguous() or not width or tensor.storage_offset() % width:
        return None
    num_rows = tensor.untyped_storage().nbytes() // tensor.element_size() // width
    shape = (num_rows, *tensor.shape[1:])
    return tensor.detach().as_strided(shape, tensor.stride(), 0) if num_rows >= _LEAST_ROWS else None


def _stored(dataset: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    """Yield the arrays of a dataset whose rows have a shape; of subsets, only their rows."""
    indices: Any = None
    for _ in range(_MAX_DEPTH):
        if not isinstance(dataset, torch.utils.data.Subset):
            break
        indices = dataset.indices if indices is None else [dataset.indices[index] for index in indices]
        dataset = dataset.dataset
    if type(dataset) is list and 0 < len(dataset) <= _MAX_LISTED:
        firsts = [item[0] if isinstance(item, tuple | list) and item else None for item in dataset]
        arrays = [_array(item) for item in firsts]
        is_even = all(item is not None and item.shape == shape for item in arrays)
        held: list[Any] = [np.stack(arrays)] if is_even else []
    else:
        own = vars(dataset) if hasattr(dataset, "__dict__") else {}
        tensors = own.get("tensors")
        held = [*(tensors if type(tensors) is tuple else ()), *own.values()]
    for item in held:
        rows = _array(item)
        if rows is None or rows.shape[1:] != shape or rows.size > _MAX_READ:
            continue
        yield rows if indices is None else rows[np.asarray(indices)]


def _array(item: Any) -> Any:
    """Return floats as an array; None if it is something else."""
    if isinstance(item, Tensor):
        is_plain = type(item) is Tensor and item.layout is torch.strided and item.is_cpu and not item.is_neg()
        item = array_of(item) if is_plain and item.is_floating_point() and item.element_size() > 2 else None
    is_float = isinstance(item, np.ndarray) and item.dtype in (np.float32, np.float64)
    return item if is_float else None


def _measure(model: int, is_trained: bool, rows: Any) -> SetStandardized | None:
    """Return which columns have the mean 0 and the deviation 1; None if there are none."""
    if len(rows) < _LEAST_ROWS or rows.size > _MAX_READ:
        return None
    values = rows.astype(np.float64)
    if not np.isfinite(values).all() or _is_by_row(values):
        return None
    dims = values.ndim
    for axis in (*_AXES.get(dims, ()), tuple(range(dims))):
        means, stds = values.mean(axis), values.std(axis)
        num = prod(values.shape[place] for place in axis)
        corrected = stds * (num / (num - 1)) ** 0.5
        is_unit = (np.abs(stds - 1) < _TOLERANCE) | (np.abs(corrected - 1) < _TOLERANCE)
        found = np.atleast_1d((np.abs(means) < _TOLERANCE) & is_unit)
        if found.ndim == 1 and found.any():
            columns = [int(column) for column in np.flatnonzero(found)[:_MAX_COLUMNS]]
            others = tuple(place for place in range(dims) if place not in axis)
            table = np.moveaxis(values, others[0], -1) if others else values
            table = table.reshape(len(values), -1, len(found))[:, :, columns]
            columns = [column for place, column in enumerate(columns) if _is_varied(table[:, :, place])]
            if columns and not _is_in_parts(table):
                return SetStandardized(
                    model=model,
                    is_trained=is_trained,
                    axes=list(axis),
                    columns=columns,
                    num_columns=len(found),
                    num_rows=len(values),
                    digest=zlib.crc32(np.ascontiguousarray(rows).tobytes()),
                    largest_mean=float(np.abs(np.atleast_1d(means)[columns]).max()),
                )
    return None


def _is_by_row(values: Any) -> bool:
    """Whether each sample is standardized for itself."""
    rows = values[:_MAX_DEPTH].reshape(min(len(values), _MAX_DEPTH), -1)
    if rows.shape[1] < _LEAST_WIDTH:
        return False
    return bool((np.abs(rows.mean(1)) < 1e-2).all() and (np.abs(rows.std(1) - 1) < 0.1).all())


def _is_varied(column: Any) -> bool:
    """Whether it has more than a few values: a balanced code of -1 and 1 has the mean 0 from the start."""
    return len(np.unique(column[:_MAX_LISTED])) > _LEAST_VALUES


def _is_in_parts(table: Any) -> bool:
    """Whether the rows are several parts that were standardized each for itself, as those of a person."""
    # Near the last row the mean is near 0 in any case.
    margin = max(2, len(table) // 20)
    sums, squares = (values.sum(1).cumsum(0)[margin:-margin] for values in (table, table**2))
    nums = np.arange(margin + 1, len(table) - margin + 1)[:, None] * table.shape[1]
    is_end = (np.abs(sums / nums) < _PART_TOLERANCE) & (np.abs(squares / nums - 1) < _SPREAD_TOLERANCE)
    return bool(is_end.all(1).any())
