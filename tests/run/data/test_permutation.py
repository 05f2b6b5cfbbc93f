"""The order: a bijection, the same forever, statistically a shuffle, and cheap."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.run.data import order_statistics as statistics
from truestep.errors import UsageError
from truestep.run.data import Permutation
from truestep.run.data.permutation import VERSION, Order

SEEDS = st.integers(-(2**63), 2**63 - 1)


@given(n=st.integers(1, 3000), seed=SEEDS, epoch=st.integers(0, 1000))
def test_every_index_stands_at_one_position(n: int, seed: int, epoch: int) -> None:
    order = Permutation(n, seed=seed, epoch=epoch)
    indices = order(np.arange(n))
    assert indices.dtype == np.int64
    assert sorted(indices.tolist()) == list(range(n))
    assert order.inverse(indices).tolist() == list(range(n))


@given(n=st.integers(1, 2**62), seed=SEEDS, data=st.data())
def test_the_inverse_leads_back_at_any_size(n: int, seed: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=40))
    order = Permutation(n, seed=seed, epoch=3)
    indices = order(np.array(positions))
    assert indices.min() >= 0 and indices.max() < n
    assert order.inverse(indices).tolist() == positions


@pytest.mark.parametrize("n", [2**31, 2**31 + 1, 2**32, 2**32 + 1, 2**61 + 1, 2**62])
def test_the_borders_of_word_sizes_are_bijections(n: int) -> None:
    order = Permutation(n, seed=1, epoch=0)
    ends = np.array([0, 1, n // 2, n - 2, n - 1])
    assert order.inverse(order(ends)).tolist() == ends.tolist()


@pytest.mark.parametrize("positions", [[-1], [10], [3, -5], [2**63 - 1]])
def test_positions_outside_are_refused(positions: list[int]) -> None:
    for n in (10, 1000):
        order = Permutation(n, seed=1, epoch=0)
        with pytest.raises(UsageError, match=rf"positions must be in \[0, {n}\)"):
            order(np.array([each if each != 10 else n for each in positions]))


@pytest.mark.parametrize("n", [0, -1, 2**62 + 1])
def test_sizes_outside_are_refused(n: int) -> None:
    with pytest.raises(UsageError, match=r"n from 1 to 2\*\*62"):
        Permutation(n, seed=1, epoch=0)


def test_a_seed_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="64 signed bits"):
        Permutation(10, seed=2**63, epoch=0)


# n, seed, epoch: the indices at positions 0, 1, 2, n // 3, n // 2 and n - 1.
GOLDEN = {
    (1, 7, 1): [0, 0, 0, 0, 0, 0],
    (2, 7, 1): [0, 1, 0, 0, 1, 1],
    (3, 0, 0): [2, 0, 1, 0, 0, 1],
    (3, 7, 0): [0, 2, 1, 2, 2, 1],
    (3, 7, 1): [0, 2, 1, 2, 2, 1],
    (3, -1, 3): [0, 1, 2, 1, 1, 2],
    (256, 7, 1): [51, 99, 48, 58, 6, 71],
    (257, 7, 1): [65, 81, 192, 77, 246, 5],
    (1000, 0, 0): [583, 499, 530, 660, 168, 925],
    (1000, 7, 0): [729, 334, 854, 559, 830, 753],
    (1000, 7, 1): [187, 775, 709, 899, 952, 99],
    (1000, -1, 3): [832, 250, 844, 434, 962, 981],
    (1048576, 0, 0): [310853, 773428, 888746, 752366, 950785, 825912],
    (1048576, 7, 0): [431754, 753713, 175327, 561009, 834473, 749218],
    (1048576, 7, 1): [949142, 784027, 411760, 585916, 578765, 171388],
    (1048576, -1, 3): [903286, 926786, 537476, 998242, 20355, 199104],
    (1000003, 7, 1): [778433, 935722, 168132, 934136, 552463, 527511],
    (4294967296, 7, 1): [2072982313, 4081315046, 1885578836, 3712762254, 4235597073, 4223152778],
    (1000000000000, 0, 0): [
        995220761318,
        583457456569,
        557532818703,
        565350645602,
        919834372823,
        510870117888,
    ],
    (1000000000000, 7, 0): [
        608661810922,
        157451431291,
        434190025693,
        166011367827,
        206037050340,
        443173522238,
    ],
    (1000000000000, 7, 1): [
        560151410113,
        404061109366,
        695700111093,
        549914137765,
        594600807789,
        504088620677,
    ],
    (1000000000000, -1, 3): [
        251604193180,
        716810466172,
        309243401190,
        902858445748,
        209505221284,
        668920588244,
    ],
    (4611686018427387904, 7, 1): [
        4424695304349186158,
        1392893210389460472,
        2024257894187195452,
        597909721375963382,
        2881255901780882526,
        4573862062948338953,
    ],
}


def test_golden_vectors_belong_to_this_version() -> None:
    assert VERSION == 1, "a new version needs new vectors; the old ones stay what version 1 means"


@pytest.mark.parametrize(("n", "seed", "epoch"), GOLDEN)
def test_order_is_the_one_that_was_frozen(n: int, seed: int, epoch: int) -> None:
    positions = np.array([0, 1 % n, 2 % n, n // 3, n // 2, n - 1])
    assert Permutation(n, seed=seed, epoch=epoch)(positions).tolist() == GOLDEN[n, seed, epoch]


def test_seed_and_epoch_each_change_the_order() -> None:
    orders = {
        tuple(Permutation(1000, seed=seed, epoch=epoch)(np.arange(1000)).tolist())
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(orders) == 25


@pytest.mark.parametrize(("n", "num_seeds"), [(1000, 100), (2**20, 2), (1_000_003, 2)])
@pytest.mark.parametrize("shuffle", [statistics.ours, statistics.ours_by_epoch, statistics.randperm])
def test_statistics_are_those_of_a_shuffle(shuffle: statistics.Shuffle, n: int, num_seeds: int) -> None:
    found = statistics.measure(shuffle, n, num_seeds=num_seeds)
    assert statistics.failures(found) == [], statistics.worst(found)


@pytest.mark.parametrize(("n", "num_seeds"), [(1000, 100), (2**20, 2), (1_000_003, 2)])
def test_statistics_find_two_rounds_too_few(n: int, num_seeds: int) -> None:
    found = statistics.measure(statistics.ours_in_two_rounds, n, num_seeds=num_seeds)
    assert {"position", "adjacent pair", "gap", "cross seed"} <= set(statistics.failures(found))


@pytest.mark.parametrize(("n", "num_seeds"), [(3, 360), (4, 1440), (5, 2400)])
def test_every_tiny_permutation_is_equally_likely(n: int, num_seeds: int) -> None:
    assert abs(statistics.uniformity(statistics.ours, n, num_seeds=num_seeds)) < statistics.LIMIT
    assert (
        abs(statistics.uniformity(statistics.ours_in_two_rounds, n, num_seeds=num_seeds)) > statistics.LIMIT
    )


@settings(max_examples=30)
@given(
    n=st.integers(1, 100_000),
    slices=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 70_000)), min_size=1, max_size=4),
)
def test_slices_of_an_order_are_the_permutation(n: int, slices: list[tuple[float, int]]) -> None:
    # Two of them: what one method has computed must not be what makes the other right.
    lists, arrays = Order(n, seed=3, epoch=1), Order(n, seed=3, epoch=1)
    whole = Permutation(n, seed=3, epoch=1)(np.arange(n)).tolist()
    for place, length in slices:
        start = int(place * (n - 1))
        stop = min(n, start + length)
        assert arrays.array(start, stop).tolist() == whole[start:stop]
        assert lists.indices(start, stop) == whole[start:stop]


def test_an_order_can_be_read_backwards() -> None:
    order = Order(100_000, seed=3, epoch=1)
    whole = order.indices(0, 100_000)
    for start in (90_000, 65_530, 40_000, 32_760, 0):
        assert order.indices(start, start + 32) == whole[start : start + 32]


def test_an_order_ends_where_the_data_does() -> None:
    with pytest.raises(UsageError, match=r"positions must be in \[0, 1000\), got 1000"):
        Order(1000, seed=1, epoch=0).indices(990, 1001)


def test_memory_does_not_depend_on_the_size() -> None:
    peaks = []
    for n in (10**5, 10**12):
        order = Order(n, seed=1, epoch=0)
        tracemalloc.start()
        for start in range(0, 90_000, 32):
            order.indices(start, start + 32)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 5_000_000
