"""Digests."""

import pytest
import torch

from truestep.bits import digest, digest_state, witness


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


def test_witness_sees_one_flipped_bit() -> None:
    gradient = torch.randn(1000)
    before = witness([gradient])
    gradient.view(torch.int32)[17] ^= 1
    assert witness([gradient]) != before


def test_witness_of_a_tensor_is_that_of_its_parts_and_their_padding() -> None:
    gradient = torch.randn(7, 3)
    parts = [*gradient.split(3), torch.zeros(5), torch.empty(0)]
    assert witness([gradient]) == witness(parts) != 0
