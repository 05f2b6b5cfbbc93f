"""Seeds."""

import random

import numpy
import pytest
import torch

from truestep.base.rng import LazySeeds, Seeds, derive, seed_generators

GOLDEN = (0.6712265014648438, 0.9860710617908175, 0.13077952802125092)


def test_derived_seeds_never_change() -> None:
    assert derive(7, "lane", 0, 1) == 6274609481928562781
    assert derive(-1, "data", 10**12, 7) == derive(-1, "data", 10**12, 7)


def test_no_two_places_share_a_seed() -> None:
    seeds = {
        derive(root, purpose, step, lane)
        for root in (0, 1, 2)
        for purpose in ("lane", "data")
        for step in range(50)
        for lane in range(8)
    }
    assert len(seeds) == 3 * 2 * 50 * 8


def _draw() -> tuple[float, float, float]:
    return torch.rand(()).item(), random.random(), float(numpy.random.rand())


@pytest.mark.practice("P57")
def test_every_global_generator_is_set() -> None:
    """One seed sets the generators of torch, Python and NumPy."""
    seed_generators(7, "lane", 3, 1)
    first = _draw()
    seed_generators(7, "lane", 3, 1)
    assert _draw() == first
    seed_generators(7, "lane", 3, 2)
    assert all(a != b for a, b in zip(_draw(), first, strict=True))


def test_gaussians_kept_by_a_generator_do_not_leak_into_the_next_place() -> None:
    draws = []
    for _ in range(2):
        seed_generators(7, "lane", 3, 1)
        draws.append((random.gauss(0, 1), float(numpy.random.randn()), torch.randn(()).item()))
    assert draws[0] == draws[1]


def test_what_a_place_gets_does_not_depend_on_places_visited_before() -> None:
    def draws(*visited: int) -> tuple[float, float, float]:
        seeds = Seeds(7, "lane")
        for number in (*visited, 1000):
            seeds.set(number, 2)
            drawn = _draw()
        return drawn

    assert draws() == draws(999, 1001, 5) == draws(*range(990, 1000))


def test_many_places_are_forgotten_and_made_again_the_same() -> None:
    seeds = Seeds(7, "lane")
    seeds.set(3, 0)
    first = _draw()
    for lane in range(1, 600):
        seeds.set(3, lane)
    assert len(seeds._blocks) <= 256
    seeds.set(3, 0)
    assert _draw() == first


def test_seeds_never_change() -> None:
    # Frozen: a change here changes every result, and needs a new VERSION.
    seed_generators(7, "lane", 3, 1, 0)
    assert _draw() == GOLDEN


def test_lazy_seeds_give_each_place_its_own_draws_from_the_round_after_the_first_use() -> None:
    seeds, drawn = LazySeeds(7, "lane"), []
    for number in range(4):
        for lane in range(2):
            seeds.set(number, lane)
            drawn.append((random.random(), float(numpy.random.rand())) if number else None)
            seeds.leave()
        seeds.end_round()
        assert seeds.is_used == (number >= 1)
    assert drawn[2] == drawn[3]  # the first round that draws: all at the one state
    assert len(set(drawn[4:])) == 4


def test_lazy_seeds_are_not_misled_by_draws_outside_of_places() -> None:
    seeds = LazySeeds(7, "lane")
    random.random()
    numpy.random.seed(3)
    seeds.set(0, 0)
    torch.rand(3)
    seeds.leave()
    seeds.end_round()
    assert not seeds.is_used


def test_torch_draws_the_same_whether_the_others_are_used_or_not() -> None:
    unused, used = LazySeeds(7, "lane"), LazySeeds(7, "lane")
    used.is_used = True
    draws = []
    for seeds in (unused, used):
        seeds.set(12, 3)
        draws.append(torch.rand(()).item())
    assert draws[0] == draws[1]
