"""The tree of sums."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from truestep.errors import UsageError
from truestep.run.dist.tree import LaneSum, ScatteredSum, add_tensors, lanes_of, maximal_subtrees


def _joined(left: str, right: str) -> str:
    return f"({left}+{right})"


def _formula(lanes: list[int]) -> str:
    total = LaneSum[str](_joined)
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


def test_a_missing_part_is_left_out_not_added_as_zero() -> None:
    # -0.0 + 0.0 is 0.0: adding zeros for lanes that do not use a parameter would change bits.
    negative_zero = torch.tensor([-0.0])
    result = add_tensors([negative_zero, None], [None, None])
    assert torch.signbit(result[0]).item() and result[1] is None


def test_more_processes_than_lanes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"got lanes=2 on 4 processes. Pass lanes=4 or more"):
        lanes_of(0, size=4, num_lanes=2)


def test_lanes_are_cut_into_the_fewest_aligned_subtrees() -> None:
    for start, stop in itertools.combinations(range(18), 2):
        nodes = maximal_subtrees(range(start, stop))
        assert [lane for first, size in nodes for lane in range(first, first + size)] == list(
            range(start, stop)
        )
        assert all(size.bit_count() == 1 and first % size == 0 for first, size in nodes)
        pairs = itertools.pairwise(nodes)
        assert not any(a[1] == b[1] and a[0] ^ a[1] == b[0] for a, b in pairs), "two siblings left apart"


def test_a_lane_outside_the_subtrees_is_not_lost_silently() -> None:
    total = LaneSum[str](_joined)
    total.push(4, "4")
    with pytest.raises(AssertionError, match="none of the subtrees"):
        total.take_nodes([(0, 4)])


@given(st.sets(st.integers(0, 40), min_size=1).flatmap(lambda lanes: st.permutations(sorted(lanes))))
def test_any_order_gives_the_one_tree(order: list[int]) -> None:
    total = ScatteredSum[str](_joined, lanes=order)
    for _ in range(2):  # it starts anew with the same lanes
        for lane in order:
            total.push(lane, str(lane))
        assert total.take() == _formula(sorted(order))


def test_sums_of_interleaved_processes_stay_few() -> None:
    lanes = [lane for lane in range(256) if lane % 7]
    order = sorted(lanes, key=lambda lane: (lane % 64, lane))  # four processes, lane by lane
    total = ScatteredSum[str](_joined, lanes=lanes)
    for lane in order:
        total.push(lane, str(lane))
        assert len(total._open) <= 4 * 7
    assert total.take() == _formula(lanes)


def test_lanes_of_the_next_sum_can_be_others() -> None:
    total = ScatteredSum[str](_joined, lanes=[0, 1])
    total.expect([6, 2])
    total.push(6, "6")
    with pytest.raises(UsageError, match=r"a sum is under way, waiting for lanes 2\."):
        total.expect([0])
    with pytest.raises(UsageError, match=r"not complete: it waits for lanes 2\."):
        total.take()
    for lane in (6, 0):
        with pytest.raises(UsageError, match=f"lane {lane} is not awaited, only lanes 2"):
            total.push(lane, str(lane))
    total.push(2, "2")
    assert total.take() == "(2+6)"
