"""Splitting a dataset into parts, reproducibly and without a list of indices.

Owns which sample belongs to which part. Leaves the order inside an epoch to the loader.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from truestep.base import rng
from truestep.errors import UsageError
from truestep.run.data.permutation import Indices, Order, Permutation


class PartIndices(Sequence[int]):
    """The indices of a part, computed when they are asked for."""

    def __init__(self, permutation: Permutation, positions: range) -> None:
        self._permutation = permutation
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return self.at(range(len(self))[index])
        return int(self._permutation(np.array([self._positions[index]]))[0])

    def __iter__(self) -> Iterator[int]:
        order = Order(len(self), seed=0, epoch=0, shuffle=False, onto=self.locate)
        return (order.indices(place, place + 1)[0] for place in range(len(self)))

    def at(self, places: Sequence[int]) -> list[int]:
        """Return the indices at several places of the part."""
        found: list[int] = self.locate(np.asarray(places, dtype=np.int64)).tolist()
        return found

    def locate(self, places: Indices) -> Indices:
        """Return the indices at several places of the part, as an array."""
        if places.size and (int(places.min()) < 0 or int(places.max()) >= len(self)):
            raise IndexError(
                f"a part of {len(self)} samples has no sample at {places.min()} or {places.max()}"
            )
        return self._permutation(places + self._positions.start)


def read_many(dataset: Any, indices: list[int]) -> list[Any]:
    """Return several samples of a dataset, in one call if it offers one."""
    many = getattr(dataset, "__getitems__", None)
    return list(many(indices)) if many is not None else [dataset[index] for index in indices]


class Part:
    """One part of a split: a dataset that reads its samples from the one that was split."""

    def __init__(self, dataset: Any, indices: PartIndices, *, content_id: str) -> None:
        self.dataset = dataset
        self.indices = indices
        self.content_id = content_id

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: int) -> Any:
        return self.dataset[self.indices[place]]

    def __getitems__(self, places: list[int]) -> list[Any]:
        return read_many(self.dataset, self.indices.at(places))


def split(dataset: Any, fractions: Sequence[float], *, seed: int) -> list[Part]:
    """Split a dataset into disjoint parts that together cover it, by fractions or by counts.

    Which sample goes where depends on the seed and the dataset's length alone. No list of indices is
    made, so a dataset of 10**12 samples costs what one of ten does.

    >>> train, valid = split(list(range(10)), [0.8, 0.2], seed=7)
    >>> len(train), len(valid), sorted([*train.indices, *valid.indices]) == list(range(10))
    (8, 2, True)
    """
    num_samples = _length(dataset)
    sizes = _sizes(list(fractions), num_samples)
    permutation = Permutation(num_samples, seed=rng.derive(seed, "split"), epoch=0)
    base = getattr(dataset, "content_id", "unnamed")
    parts = []
    start = 0
    for size in sizes:
        positions = range(start, start + size)
        content = f"{base}/split {seed} of {num_samples} at {positions.start}:{positions.stop}"
        parts.append(Part(dataset, PartIndices(permutation, positions), content_id=content))
        start += size
    return parts


def _length(dataset: Any) -> int:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"split needs a dataset with __len__ and __getitem__, got {type(dataset).__name__}."
            " A stream has no samples to pick from: split its files instead."
        )
    if hasattr(dataset, "epoch_order"):
        raise UsageError(
            f"split would scatter each part over all files of {type(dataset).__name__}, which is read file"
            " after file. Split the list of urls, and make a dataset of each part."
        )
    return len(dataset)


def _sizes(fractions: list[float], num_samples: int) -> list[int]:
    if not fractions or not all(type(each) in {int, float} and each > 0 for each in fractions):
        raise UsageError(
            f"split needs positive fractions or counts, got {fractions}. Pass for example [0.8, 0.1, 0.1]."
        )
    if all(type(each) is int for each in fractions):
        sizes = [int(each) for each in fractions]
        if sum(sizes) != num_samples:
            raise UsageError(
                f"counts must sum to the dataset's length {num_samples}, got {sizes} with sum {sum(sizes)}."
                " Pass counts that cover every sample, or fractions that sum to 1."
            )
        return sizes
    if not math.isclose(math.fsum(fractions), 1.0, abs_tol=1e-9):
        raise UsageError(
            f"fractions must sum to 1, got {fractions} with sum {math.fsum(fractions)}."
            " Add a part for the rest; parts that are not used cost nothing."
        )
    bounds = [round(math.fsum(fractions[:count]) * num_samples) for count in range(len(fractions))]
    sizes = [stop - start for start, stop in zip(bounds, [*bounds[1:], num_samples], strict=True)]
    if min(sizes) < 1:
        raise UsageError(
            f"every part needs a sample, got sizes {sizes} from {fractions} of {num_samples} samples."
            " Pass larger fractions or fewer parts."
        )
    return sizes
