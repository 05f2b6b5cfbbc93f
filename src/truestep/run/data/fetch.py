"""Fetching one lane of a dataset with a length: find its samples in the order, read them, collate them.

Owns what a lane's data may depend on: root seed, step and lane, never the process or worker that reads it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import TensorDataset, default_collate

from truestep.base import rng
from truestep.run.data.part import Part
from truestep.run.data.permutation import Order
from truestep.run.data.plan import Request

Collate = Callable[[list[Any]], Any]

_SHOWN = 8


LaneFetch = Callable[[Request], Any]


@contextmanager
def one_thread() -> Iterator[None]:
    """Run a block with one torch thread."""
    # bits: loader workers have one thread, and the number of threads changes the bits of what they compute.
    num_threads = torch.get_num_threads()
    if num_threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


class Orders:
    """The order of whichever epoch is being read; one is kept, since epochs follow each other.

    A dataset that is not read equally fast everywhere has a shuffled order of its own: its method
    `epoch_order(seed=, epoch=)` returns a function from positions to indices.
    """

    def __init__(self, dataset: Any, *, seed: int, shuffle: bool) -> None:
        self._num_samples = len(dataset)
        self._seed = seed
        self._shuffle = shuffle
        # A part of a split is read through: its own permutation is applied a chunk at a time.
        self._onto = dataset.indices.locate if type(dataset) is Part else None
        self._own = getattr(dataset, "epoch_order", None) if shuffle else None
        self._epoch: int | None = None
        self._order: Order

    def of(self, epoch: int) -> Order:
        """Return the order of an epoch."""
        if epoch != self._epoch:
            onto = self._onto if self._own is None else self._own(seed=self._seed, epoch=epoch)
            is_shuffled = self._shuffle and self._own is None
            self._order = Order(
                self._num_samples, seed=self._seed, epoch=epoch, shuffle=is_shuffled, onto=onto
            )
            self._epoch = epoch
        return self._order


class FetchItem:
    """For batch_size=None over a list or tuple: the item is the lane's batch."""

    def __init__(self, items: list[Any] | tuple[Any, ...], orders: Orders) -> None:
        self._items = items
        self._orders = orders

    def __call__(self, request: Request) -> Any:
        """Return the lane's data."""
        _, epoch, _, start, stop = request
        # No code of the user's runs here, so nothing can draw: seeding would be most of the step's cost.
        return self._items[self._orders.of(epoch).indices(start, stop)[0]]


class FetchTensors:
    """For a TensorDataset with the default collate: one gather per tensor instead of one per sample."""

    def __init__(self, tensors: tuple[torch.Tensor, ...], orders: Orders) -> None:
        self._tensors = tensors
        self._orders = orders

    def __call__(self, request: Request) -> Any:
        """Return the lane's data."""
        _, epoch, _, start, stop = request
        # No code of the user's runs here either: see FetchItem.
        places = torch.from_numpy(self._orders.of(epoch).array(start, stop))
        # A list, because that is what the default collate makes of tuples.
        return [tensor.index_select(0, places) for tensor in self._tensors]


class FetchSamples:
    """For any other dataset: what the user wrote runs with the generators set for this step and lane."""

    def __init__(self, dataset: Any, orders: Orders, *, collate: Collate | None, seed: int) -> None:
        self._dataset = dataset
        self._orders = orders
        self._collate = collate
        self._seed = seed

    def __call__(self, request: Request) -> Any:
        """Return the lane's data."""
        indices = self._orders.of(request.epoch).indices(request.start, request.stop)
        with one_thread():
            # bits: draws belong to the step and the lane, so it does not matter which worker makes them.
            rng.seed_generators(self._seed, "data", request.step, request.lane)
            samples = self._read(indices, request)
            if self._collate is None:
                return samples[0]
            return _collated(self._collate, samples, indices, request)

    def _read(self, indices: list[int], request: Request) -> list[Any]:
        dataset = self._dataset
        many = getattr(dataset, "__getitems__", None)
        if many is not None:
            try:
                return list(many(indices))
            except Exception as error:
                error.add_note(f"while fetching {_named(indices)} {_for(request)}")
                raise
        samples: list[Any] = []
        try:
            for index in indices:
                samples.append(dataset[index])  # noqa: PERF401 - its length says which sample failed
        except Exception as error:
            error.add_note(f"while fetching {_named([indices[len(samples)]])} {_for(request)}")
            raise
        return samples


def _collated(collate: Collate, samples: list[Any], indices: list[int], request: Request) -> Any:
    try:
        return collate(samples)
    except Exception as error:
        error.add_note(f"while collating {_named(indices)} {_for(request)}")
        raise


def _for(request: Request) -> str:
    return f"for lane {request.lane} of step {request.step}"


def _named(indices: list[int]) -> str:
    if len(indices) == 1:
        return f"sample {indices[0]}"
    shown = ", ".join(map(str, indices[:_SHOWN]))
    return f"samples {shown}" + (f" and {len(indices) - _SHOWN} more" if len(indices) > _SHOWN else "")


def fetch_for(dataset: Any, *, seed: int, shuffle: bool, collate: Collate | None) -> LaneFetch:
    """Return the fastest way to fetch lanes of this dataset; collate is None where items are whole lanes."""
    orders = Orders(dataset, seed=seed, shuffle=shuffle)
    source = dataset.dataset if type(dataset) is Part else dataset
    if collate is None and type(source) in (list, tuple):
        return FetchItem(source, orders)
    if collate is default_collate and type(source) is TensorDataset and _can_gather(source):
        return FetchTensors(source.tensors, orders)
    return FetchSamples(source, orders, collate=collate, seed=seed)


def _can_gather(dataset: TensorDataset) -> bool:
    # Subclasses of Tensor, sparse and nested ones have their own idea of indexing: sample by sample then.
    return all(
        type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
        for tensor in dataset.tensors
    )
