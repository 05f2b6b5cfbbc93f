"""Loss spikes: a planted one is found, and losses that only have a wide spread are not."""

import copy
import math
import random

import pytest

from truestep.base.spikes import Spikes


def found_in(losses: list[float]) -> list[int]:
    spikes = Spikes()
    taken = [spikes.take(step, loss) for step, loss in enumerate(losses)]
    return [spike.step for spike in taken if spike is not None]


def test_a_planted_spike_is_found_at_its_step_and_told_once() -> None:
    draw = random.Random(0)
    losses = [2.3 * math.exp(-step / 2000) + draw.gauss(0, 0.05) for step in range(5000)]
    assert found_in(losses) == []
    losses[3000] += 4
    losses[3001] += 3  # after the first one, not far from what was seen
    assert found_in(losses) == [3000]
    spikes = Spikes()
    for step, loss in enumerate(losses[:3000]):
        spikes.take(step, loss)
    spike = spikes.take(3000, losses[3000])
    assert str(spike).startswith("loss spike at step 3000: 4.5")


@pytest.mark.parametrize("kind", ["gauss", "exponential", "lognormal", "falling", "rising", "two values"])
def test_a_wide_spread_is_no_spike(kind: str) -> None:
    draw = random.Random(1)
    losses = {
        "gauss": [draw.gauss(0, 1) for _ in range(20_000)],
        "exponential": [draw.expovariate(1) for _ in range(20_000)],
        "lognormal": [draw.lognormvariate(0, 0.7) for _ in range(20_000)],
        "falling": [10 / (1 + step) + draw.gauss(0, 0.01) for step in range(20_000)],
        "rising": [0.001 * step + draw.gauss(0, 0.01) for step in range(20_000)],
        "two values": [float(draw.random() < 0.02) for _ in range(20_000)],
    }[kind]
    assert found_in(losses) == []


def test_what_is_not_finite_is_left_to_others() -> None:
    losses = [1 + 0.01 * (step % 9) for step in range(200)]
    losses[150:152] = [math.inf, math.nan]
    assert found_in(losses) == []


def test_the_highest_loss_before_a_spike_is_that_of_the_last_losses() -> None:
    draw = random.Random(1)
    losses = [draw.choice((0.0, 1.0, 2.0)) + draw.random() / 8 for _ in range(2000)]
    spikes = Spikes()
    for step, loss in enumerate(losses):
        if step >= 128 and step % 17 == 0:  # a copy is asked, so that the spike stays out of the losses
            spike = copy.deepcopy(spikes).take(step, 100.0)
            assert spike is not None
            assert (spike.highest, spike.num_before) == (max(losses[step - 128 : step]), 128)
        spikes.take(step, loss)
