"""Digests."""

import copy
from typing import Any

import numpy
import pytest
import torch

from truestep.base.bits import digest, digest_state, witness


def test_digest_sees_the_sign_of_zero() -> None:
    assert digest([("a", torch.tensor([0.0]))]) != digest([("a", torch.tensor([-0.0]))])


@pytest.mark.parametrize(
    "other",
    [
        [("b", torch.arange(4.0))],
        [("a", torch.arange(4.0).reshape(2, 2))],
        [("a", torch.arange(4.0, dtype=torch.float64))],
        [("a", torch.arange(4.0).flip(0))],
        [("a", torch.arange(4.0)), ("b", torch.empty(0))],
    ],
    ids=["name", "shape", "dtype", "order", "one more"],
)
def test_digest_sees_every_difference(other: list[tuple[str, torch.Tensor]]) -> None:
    assert digest([("a", torch.arange(4.0))]) != digest(other)


def test_digest_does_not_see_memory_layout() -> None:
    square = torch.arange(6.0).reshape(2, 3)
    assert digest([("a", square.T.contiguous())]) == digest([("a", square.T)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.int8, torch.complex64, torch.float16])
def test_digest_takes_every_dtype(dtype: torch.dtype) -> None:
    assert digest([("a", torch.ones(3, dtype=dtype))]) != digest([("a", torch.zeros(3, dtype=dtype))])


def test_digest_of_a_state_covers_numbers_and_nests() -> None:
    state = {"b": [torch.ones(1), {"lr": 0.1}], "a": (1, True)}
    assert digest_state(state) == digest_state({"a": (1, True), "b": [torch.ones(1), {"lr": 0.1}]})
    assert digest_state(state) != digest_state({"a": (1, True), "b": [torch.ones(1), {"lr": 0.2}]})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (numpy.arange(3), numpy.arange(3)[::-1]),
        (numpy.arange(3), numpy.arange(3.0)),
        (numpy.float32(1.0), numpy.float32(1.5)),
        (numpy.int64(1), numpy.int64(2)),
        (numpy.bool_(True), numpy.bool_(False)),
        (numpy.array([1, [2.0]], dtype=object), numpy.array([1, [3.0]], dtype=object)),
        (1j, 2j),
        (2**127 + 1, 2**127),
        (2**63, -(2**63)),
    ],
    ids=lambda value: f"{type(value).__name__} {value}",
)
def test_digest_of_a_state_sees_arrays_and_numbers_of_any_kind(one: Any, other: Any) -> None:
    assert digest_state({"a": one}) == digest_state({"a": copy.deepcopy(one)})
    assert len({digest_state({"a": one}), digest_state({"a": other}), digest_state({})}) == 3


def test_digest_of_an_array_does_not_see_memory_layout() -> None:
    array = numpy.arange(6, dtype=numpy.int32).reshape(2, 3)
    array.flags.writeable = False
    expected = digest_state(torch.arange(6, dtype=torch.int32).reshape(2, 3))
    for same in (array, numpy.asfortranarray(array), array[::-1][::-1], array.astype(">i4")):
        assert digest_state(same) == expected


def test_digest_of_a_generator_of_numpy_sees_what_was_drawn() -> None:
    generator = numpy.random.default_rng(7)
    before = digest_state(generator.bit_generator.state)
    generator.random()
    assert digest_state(generator.bit_generator.state) != before


def test_digests_of_states_never_change() -> None:
    # Frozen: people keep them to compare with.
    state = {
        "w": torch.arange(3.0),
        "n": [1, -(2**63), True, 0.5, numpy.float64(0.25)],
        "s": "text",
        "none": None,
    }
    assert digest_state(state) == "fe8558c611392f5cd3298f28fd1eb03e"


def test_witness_sees_one_flipped_bit() -> None:
    gradient = torch.randn(1000)
    before = witness([gradient])
    gradient.view(torch.int32)[17] ^= 1
    assert witness([gradient]) != before


def test_witness_of_a_tensor_is_that_of_its_parts_and_their_padding() -> None:
    gradient = torch.randn(7, 3)
    parts = [*gradient.split(3), torch.zeros(5), torch.empty(0)]
    assert witness([gradient]) == witness(parts) != 0
