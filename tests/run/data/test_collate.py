"""Padding: to the longest of the lane, with lengths and a mask, and only where it belongs."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from tests.run.data.datasets import plan_of
from truestep.errors import UsageError
from truestep.run.data import Loader, Padded, pad_collate

SEQUENCES = [torch.tensor([1, 2, 3]), torch.tensor([4]), torch.tensor([5, 6])]


class Pair(NamedTuple):
    x: torch.Tensor
    y: int


@pytest.mark.practice("P43")
def test_sequences_are_padded_to_the_longest() -> None:
    """Sequences are padded to the longest of their lane, with lengths and a mask."""
    values, lengths, mask = pad_collate(pad_value=-1)(SEQUENCES)
    assert values.tolist() == [[1, 2, 3], [4, -1, -1], [5, 6, -1]]
    assert lengths.tolist() == [3, 1, 2]
    assert mask.tolist() == [[True, True, True], [True, False, False], [True, True, False]]
    assert (values.dtype, lengths.dtype, mask.dtype) == (torch.int64, torch.int64, torch.bool)


def test_equal_lengths_are_padded_too_so_that_the_type_is_always_the_same() -> None:
    padded = pad_collate()([torch.ones(2), torch.zeros(2)])
    assert type(padded) is Padded
    assert padded.mask.all()


def test_features_of_each_element_are_kept() -> None:
    padded = pad_collate()([torch.ones(2, 5), torch.ones(4, 5)])
    assert padded.values.shape == (2, 4, 5)
    assert padded.mask.shape == (2, 4)
    assert torch.equal(padded.values[0, 2:], torch.zeros(2, 5))


def test_an_empty_sequence_is_all_padding() -> None:
    padded = pad_collate(pad_value=9)([torch.zeros(0), torch.ones(2)])
    assert padded.values.tolist() == [[9, 9], [1, 1]]
    assert padded.lengths.tolist() == [0, 2]


def test_dictionaries_pad_each_field_with_its_own_value() -> None:
    samples = [
        {"ids": torch.arange(length), "labels": torch.arange(length), "score": 0.5, "name": "a"}
        for length in (1, 2)
    ]
    lane = pad_collate(pad_value={"ids": 0, "labels": -100})(samples)
    assert lane["ids"].values.tolist() == [[0, 0], [0, 1]]
    assert lane["labels"].values.tolist() == [[0, -100], [0, 1]]
    assert torch.equal(lane["score"], default_collate([0.5, 0.5]))
    assert lane["name"] == ["a", "a"]


def test_tuples_and_named_tuples_keep_their_shape() -> None:
    lane = pad_collate()([(SEQUENCES[0], 1), (SEQUENCES[1], 2)])
    assert type(lane) is list
    assert type(lane[0]) is Padded
    assert lane[1].tolist() == [1, 2]
    named = pad_collate()([Pair(SEQUENCES[0], 1), Pair(SEQUENCES[1], 2)])
    assert type(named) is Pair
    assert named.y.tolist() == [1, 2]  # type: ignore[attr-defined]


def test_fixed_fields_and_scalars_collate_as_in_torch() -> None:
    samples = [(torch.ones(3), torch.tensor(2.0), np.float32(1), "text", torch.arange(n)) for n in (1, 2)]
    lane = pad_collate(fixed=[0])(samples)
    expected = default_collate([sample[:4] for sample in samples])
    assert torch.equal(lane[0], expected[0]) and torch.equal(lane[1], expected[1])
    assert torch.equal(lane[2], expected[2]) and lane[3] == expected[3]
    assert type(lane[4]) is Padded


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_pads_each_lane_by_itself(workers: int) -> None:
    loader = Loader(
        [torch.ones(length) for length in (1, 2, 5, 3)],
        batch_size=4,
        shuffle=False,
        workers=workers,
        collate=pad_collate(),
    )
    batch = next(loader.feed(plan_of(1)))
    assert [lane.data.values.shape for lane in batch.lanes] == [(2, 2), (2, 5)]
    assert all(type(lane.data) is Padded for lane in batch.lanes)


@pytest.mark.parametrize(
    ("arguments", "samples", "message"),
    [
        ({}, [[1, 2], [3]], "got a list, which may mean a sequence or several fields"),
        ({}, [{"x": [1]}], "got a list in field 'x'"),
        ({}, [torch.ones(1, 2), torch.ones(1, 3)], r"differ in others: \[\(1, 2\), \(1, 3\)\]"),
        ({}, [torch.ones(2), torch.arange(3)], "of several dtypes: torch.float32, torch.int64"),
        ({}, [(torch.arange(3),), (torch.ones(2),)], "in field 0 of several dtypes"),
        ({"pad_value": 0.5}, [torch.arange(3)], "pad_value=0.5 does not fit sequences of torch.int64"),
        ({"pad_value": {"a": float("nan")}}, [{"a": torch.arange(3)}], "pad_value=nan in field 'a' does not"),
        ({"pad_value": {"a": 0}}, [{"b": torch.ones(1)}], "no entry for the sequence in field 'b', only for"),
    ],
)
def test_samples_that_cannot_be_padded_are_refused(arguments: Any, samples: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pad_collate(**arguments)(samples)


def test_fixed_is_no_string() -> None:
    with pytest.raises(UsageError, match="got the string 'labels'"):
        pad_collate(fixed="labels")
