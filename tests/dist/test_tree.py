"""The tree of sums."""

import itertools

import pytest
import torch

from truestep.dist import LaneSum, add_tensors, lanes_of
from truestep.errors import UsageError


def _formula(lanes: list[int]) -> str:
    total = LaneSum[str](lambda left, right: f"({left}+{right})")
    for lane in lanes:
        total.push(lane, str(lane))
    return total.take()


def _by_definition(lanes: set[int], start: int, size: int) -> str | None:
    """The tree, written as its recursive definition."""
    if size == 1:
        return str(start) if start in lanes else None
    left = _by_definition(lanes, start, size // 2)
    right = _by_definition(lanes, start + size // 2, size // 2)
    return f"({left}+{right})" if left and right else left or right


@pytest.mark.parametrize("num_lanes", range(1, 9))
def test_every_subset_of_lanes_is_summed_in_the_one_tree(num_lanes: int) -> None:
    for count in range(1, num_lanes + 1):
        for lanes in itertools.combinations(range(num_lanes), count):
            assert _formula(list(lanes)) == _by_definition(set(lanes), 0, 8)


def test_partial_sums_stay_few() -> None:
    total = LaneSum[int](lambda left, right: left + right)
    for lane in range(1000):
        total.push(lane, lane)
        assert len(total._open) <= 10
    assert total.take() == 499_500


def test_a_missing_part_is_left_out_not_added_as_zero() -> None:
    # -0.0 + 0.0 is 0.0: adding zeros for lanes that do not use a parameter would change bits.
    negative_zero = torch.tensor([-0.0])
    result = add_tensors([negative_zero, None], [None, None])
    assert torch.signbit(result[0]).item() and result[1] is None


@pytest.mark.parametrize("size", range(1, 9))
def test_processes_share_the_lanes_without_gap(size: int) -> None:
    lanes = [lane for rank in range(size) for lane in lanes_of(rank, size=size, num_lanes=8)]
    assert lanes == list(range(8))


def test_more_processes_than_lanes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"got lanes=2 on 4 processes. Pass lanes=4 or more"):
        lanes_of(0, size=4, num_lanes=2)
