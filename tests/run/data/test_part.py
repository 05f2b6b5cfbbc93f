"""Splits: reproducible, disjoint, covering, at any size."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from truestep.errors import UsageError
from truestep.run.data import split


class Huge:
    content_id = "huge"

    def __len__(self) -> int:
        return 10**12

    def __getitem__(self, index: int) -> int:
        return index


@given(
    n=st.integers(3, 400),
    cuts=st.lists(st.floats(0.01, 1), min_size=1, max_size=3),
    seed=st.integers(0, 2**63 - 1),
)
@pytest.mark.practice("P38")
def test_parts_are_disjoint_and_cover_all(n: int, cuts: list[float], seed: int) -> None:
    """A split puts every sample into exactly one part."""
    counts = [1] * len(cuts)
    for _ in range(n - len(cuts)):
        counts[_ % len(cuts)] += 1
    parts = split(range(n), counts, seed=seed)
    assert [len(part) for part in parts] == counts
    assert sorted(index for part in parts for index in part.indices) == list(range(n))


@pytest.mark.parametrize(
    ("fractions", "sizes"),
    [([0.8, 0.2], [8, 2]), ([1.0], [10]), ([0.7, 0.2, 0.1], [7, 2, 1]), ([1 / 3, 1 / 3, 1 / 3], [3, 4, 3])],
)
def test_fractions_give_sizes(fractions: list[float], sizes: list[int]) -> None:
    assert [len(part) for part in split(range(10), fractions, seed=1)] == sizes


@pytest.mark.practice("P38")
def test_the_seed_alone_decides() -> None:
    """A split is decided by its seed alone."""

    def members(seed: int) -> list[int]:
        return list(split(range(100), [0.5, 0.5], seed=seed)[0].indices)

    assert members(1) == members(1)
    assert members(1) != members(2)


def test_a_frozen_split_stays_what_it_is() -> None:
    train, valid = split(range(12), [0.75, 0.25], seed=7)
    assert [*train.indices] == FROZEN[:9]
    assert [*valid.indices] == FROZEN[9:]


FROZEN = [10, 8, 11, 5, 6, 9, 3, 4, 1, 7, 0, 2]


def test_indices_are_a_sequence() -> None:
    indices = split(range(200), [150, 50], seed=1)[0].indices
    whole = list(indices)
    assert indices[3:140] == whole[3:140]
    assert indices[::-7] == whole[::-7]
    assert indices[-1] == whole[-1]
    assert indices.at([5, 2]) == [whole[5], whole[2]]
    with pytest.raises(IndexError):
        indices[150]
    with pytest.raises(IndexError):
        indices.locate(np.array([150]))


@pytest.mark.parametrize("num_places", [3, 100])
def test_samples_come_from_the_dataset(num_places: int) -> None:
    dataset = TensorDataset(torch.arange(300))
    part = split(dataset, [200, 100], seed=1)[0]
    places = list(range(num_places))
    expected = [part.indices[place] for place in places]
    assert [part[place][0].item() for place in places] == expected
    assert [sample[0].item() for sample in part.__getitems__(places)] == expected


def test_a_part_can_be_split_again() -> None:
    train, _ = split(range(100), [0.8, 0.2], seed=1)
    left, right = split(train, [0.5, 0.5], seed=1)
    assert sorted([*(left[i] for i in range(40)), *(right[i] for i in range(40))]) == sorted(train.indices)


def test_a_part_says_what_it_holds() -> None:
    parts = split(Huge(), [0.5, 0.5], seed=3)
    assert parts[1].content_id == "huge/split 3 of 1000000000000 at 500000000000:1000000000000"


@pytest.mark.parametrize(
    ("dataset", "fractions", "message"),
    [
        (range(10), [0.8, 0.1], r"fractions must sum to 1, got \[0\.8, 0\.1\] with sum 0\.9"),
        (range(10), [8, 1], r"counts must sum to the dataset's length 10, got \[8, 1\] with sum 9"),
        (range(10), [], "positive fractions or counts"),
        (range(10), [1.5, -0.5], "positive fractions or counts"),
        (range(10), [True], "positive fractions or counts"),
        (range(10), [0.99, 0.01], r"every part needs a sample, got sizes \[10, 0\]"),
        (iter([1]), [1.0], "split needs a dataset with __len__ and __getitem__, got list_iterator"),
    ],
)
def test_splits_that_make_no_sense_are_refused(dataset: Any, fractions: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split(dataset, fractions, seed=1)
