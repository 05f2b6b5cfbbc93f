"""The schedule: each lane on the process whose lanes it is among, also for many of both."""

import random
import time

import pytest

from truestep.run.dist import schedule
from truestep.run.dist.tree import ScatteredSum, lanes_of


@pytest.mark.parametrize("num_lanes", [1, 5, 8, 23])
@pytest.mark.parametrize("is_dealt", [False, True])
def test_each_lane_is_computed_by_the_process_that_has_it(num_lanes: int, is_dealt: bool) -> None:
    for size in range(1, num_lanes + 1):
        filled = sorted(random.Random(size).sample(range(num_lanes), k=max(1, num_lanes - size)))
        plan = schedule(filled, size=size, num_lanes=num_lanes, is_dealt=is_dealt)
        for rank in range(size):
            own = lanes_of(rank, size=size, num_lanes=num_lanes, is_dealt=is_dealt)
            assert plan.lanes_of(rank) == [lane for lane in filled if lane in own]
        assert plan.is_full == (len(filled) == num_lanes)


def test_ten_thousand_processes_are_planned_in_well_under_a_second() -> None:
    begun_s = time.process_time()
    plan = schedule(list(range(10_000)), size=10_000, num_lanes=10_000)
    # Asking each lane of each process took half a minute.
    assert time.process_time() - begun_s < 2.0
    assert plan.rounds == [list(range(10_000))]


def most_open(size: int, num_lanes: int, *, is_dealt: bool) -> int:
    """The most partial sums that are open after a round."""
    total = ScatteredSum[int](int.__add__, lanes=range(num_lanes))
    most = 0
    for lanes in schedule(range(num_lanes), size=size, num_lanes=num_lanes, is_dealt=is_dealt).rounds:
        for lane in lanes:
            if lane is not None:
                total.push(lane, 1)
        most = max(most, len(total.open))
    assert total.take() == num_lanes
    return most


@pytest.mark.parametrize("size", [2, 3, 4, 8, 16])
def test_dealt_lanes_leave_as_many_sums_open_as_the_tree_is_high_whatever_the_processes(size: int) -> None:
    assert most_open(size, 64, is_dealt=True) <= 6
    assert most_open(size, 64, is_dealt=False) >= 2 * size
