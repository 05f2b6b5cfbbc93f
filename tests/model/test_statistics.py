"""Statistics say what is in a tensor, whatever is in it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from truestep.model.statistics import _from_numbers, _masked, statistics_later

FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(FLOATS, min_size=1, max_size=40))
def test_the_quick_way_gives_what_float64_gives(values: list[float]) -> None:
    found = statistics_later(torch.tensor(values))()
    finite = torch.tensor([value for value in values if math.isfinite(value)], dtype=torch.float64)
    assert found.count == len(values)
    assert found.zeros == sum(value == 0 for value in values) / len(values)
    assert found.nonfinite == (len(values) - len(finite)) / len(values)
    if not len(finite):
        assert math.isnan(found.mean) and math.isnan(found.std)
        return
    assert (found.min, found.max) == (finite.min(), finite.max())
    # Sums in float32 round: by about 1e-7 of the largest value, more where many are added.
    room = 1e-6 * max(-found.min, found.max) + 1e-38
    assert abs(found.mean - finite.mean().item()) <= room
    scale = max(finite.abs().max().item(), 1e-30)
    assert abs(found.std - (finite / scale).std(correction=0).item() * scale) <= room


@pytest.mark.parametrize("bad", [0, 3], ids=["finite", "with NaN and infinities"])
def test_the_way_for_devices_gives_the_same_without_asking_for_a_value(bad: int) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(1000).relu()
    tensor[:bad] = torch.tensor([math.nan, math.inf, -math.inf])[:bad]
    other = _from_numbers(1000, _masked(tensor).tolist())
    found = statistics_later(tensor)()
    for name in ("count", "min", "max"):
        assert getattr(other, name) == getattr(found, name)
    for name in ("mean", "std", "zeros", "nonfinite"):  # other orders of summation in float32
        assert getattr(other, name) == pytest.approx(getattr(found, name), rel=1e-6)
    assert _from_numbers(2, _masked(torch.full((2,), math.nan)).tolist()).nonfinite == 1


def test_a_spread_far_from_zero_is_not_lost_to_rounding() -> None:
    torch.manual_seed(0)
    tensor = 1000 + 0.01 * torch.randn(10_000)  # the mean of squares less the square of the mean gives 0 here
    assert statistics_later(tensor)().std == pytest.approx(tensor.double().std(correction=0).item(), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_other_dtypes_are_read_as_numbers(dtype: torch.dtype) -> None:
    found = statistics_later(torch.tensor([0, 1, 1, 0]).to(dtype))()
    assert (found.mean, found.zeros, found.max) == (0.5, 0.5, 1.0)
    assert found.std == pytest.approx(0.5, rel=1e-6)  # from a square root in float32


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-10, 1e10, 1e30])
def test_vanishing_and_exploding_values_keep_their_size(scale: float) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(1000)
    plain, scaled = statistics_later(tensor)(), statistics_later(tensor * scale)()
    # Rounding of the product and of sums in float32.
    assert scaled.std == pytest.approx(plain.std * scale, rel=1e-6)
    assert scaled.max == pytest.approx(plain.max * scale, rel=1e-6)


def test_half_does_not_overflow() -> None:
    found = statistics_later(torch.full((100,), 60000.0, dtype=torch.float16))()
    assert (found.mean, found.std, found.nonfinite) == (60000.0, 0.0, 0.0)


def test_empty_and_meta_tensors_have_no_numbers() -> None:
    assert statistics_later(torch.empty(0))().count == 0
    assert math.isnan(statistics_later(torch.empty(3, device="meta"))().mean)


def test_zeros_of_a_large_tensor_are_counted_exactly() -> None:
    tensor = torch.zeros(2**24 + 3)
    tensor[5] = 1
    assert statistics_later(tensor)().zeros == (2**24 + 2) / (2**24 + 3)
