"""Setting the Mersenne twisters: quickly, and the same as the public calls."""

import random
from typing import Any

import numpy
import pytest

from truestep.base.rng import LazySeeds, Seeds
from truestep.base.rng.twister import NUM_WORDS, NumpyTwister, PythonTwister
from truestep.errors import UsageError

STATES = numpy.random.default_rng(5).integers(0, 2**32, (3, NUM_WORDS), numpy.uint32)


def _use() -> list[float]:
    """Draw in ways that leave something behind: half of a pair of gaussians, a partly used state."""
    gaussians = [random.gauss(0, 1), float(numpy.random.randn()), random.random()]
    return [*gaussians, *numpy.random.rand(700).tolist(), *(random.random() for _ in range(400))]


def _set(python: PythonTwister, of_numpy: NumpyTwister, number: int) -> None:
    python.write(python.rows(STATES)[number])
    of_numpy.write(of_numpy.rows(STATES)[number])


def test_this_interpreter_and_numpy_are_written_directly() -> None:
    # Not a promise to users, but the overhead that we state was measured so.
    assert PythonTwister()._memory is not None
    assert NumpyTwister()._memory is not None


def test_both_ways_give_the_same_state() -> None:
    direct, public = (PythonTwister(), NumpyTwister()), (PythonTwister(), NumpyTwister())
    for twister in public:
        twister._memory = None
    for number in (0, 1, 2, 1):
        _set(*direct, number)
        states = random.getstate(), numpy.random.get_state(legacy=False)
        drawn = _use()
        _set(*public, number)
        assert random.getstate() == states[0]
        numpy.testing.assert_equal(numpy.random.get_state(legacy=False), states[1])
        assert _use() == drawn


@pytest.mark.parametrize("num_draws", [1, 312, 624])
def test_what_was_drawn_before_does_not_show(num_draws: int) -> None:
    twisters = PythonTwister(), NumpyTwister()
    _set(*twisters, 0)
    first = _use()
    _set(*twisters, 1)
    numpy.random.standard_normal(num_draws)
    numpy.random.rand(num_draws)
    _set(*twisters, 0)
    assert _use() == first


def test_seeding_by_hand_in_between_is_overwritten() -> None:
    twisters = PythonTwister(), NumpyTwister()
    _set(*twisters, 0)
    first = _use()
    numpy.random.seed(3)
    random.seed(3)
    _set(*twisters, 0)
    assert _use() == first


@pytest.mark.parametrize("other", [numpy.random.PCG64, numpy.random.MT19937])
def test_a_generator_of_numpy_that_was_replaced_is_told_and_not_passed_over(other: Any) -> None:
    before = numpy.random.get_bit_generator()  # type: ignore[attr-defined]
    seeds, lazy = Seeds(7, "lane"), LazySeeds(7, "lane")
    seeds.set(0, 0)
    lazy.set(0, 0)
    numpy.random.set_bit_generator(other(1))  # type: ignore[attr-defined]
    try:
        for each in (seeds, lazy):
            with pytest.raises(UsageError, match=f"was replaced .* is now another {other.__name__}"):
                each.set(1, 0)
    finally:
        numpy.random.set_bit_generator(before)  # type: ignore[attr-defined]
    seeds.set(1, 0)


def test_looking_for_the_state_leaves_it_as_it_was() -> None:
    random.seed(9)
    before = random.getstate()
    PythonTwister()
    assert random.getstate() == before
