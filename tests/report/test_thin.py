"""Thinning keeps what matters."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from truestep.report.thin import Series, smooth, thin


def _series(values: list[float]) -> Series:
    return Series(steps=np.arange(len(values)), values=np.array(values, dtype=float))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=400), st.integers(4, 80))
def test_thinned_series_keep_first_last_lowest_highest_and_a_nan(values: list[float], limit: int) -> None:
    series = _series(values)
    kept = thin(series, max_points=limit)
    assert len(kept) <= max(limit, limit * 5 // 4)
    assert kept.steps[0] == 0 and kept.steps[-1] == len(values) - 1
    assert np.isnan(kept.values).any() == np.isnan(series.values).any()
    assert np.isinf(kept.values).any() == np.isinf(series.values).any() or np.isnan(series.values).any()
    if len(series.finite):
        assert kept.finite.values.min() == series.finite.values.min()
        assert kept.finite.values.max() == series.finite.values.max()


def test_one_spike_and_one_nan_in_a_million_steps_are_kept() -> None:
    values = np.random.default_rng(0).normal(size=1_000_000)
    values[123_456], values[777_777] = 99.0, np.nan
    kept = thin(Series(steps=np.arange(1_000_000), values=values))
    assert len(kept) <= 4001
    assert 123_456 in kept.steps and 777_777 in kept.steps


def test_a_moving_mean_lies_between_the_extremes_and_stands_a_huge_value() -> None:
    mean, width = smooth(_series([1e308, -1e308] * 500))
    assert width == 21
    assert np.isfinite(mean.values).all() and abs(mean.values).max() < 1e308
    flat, _ = smooth(_series([2.0] * 1000))
    assert np.allclose(flat.values, 2.0)
