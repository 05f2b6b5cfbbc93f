"""Seeds."""

import random

import numpy
import torch

from truestep.rng import derive, seed_generators


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


def test_every_global_generator_is_set() -> None:
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
