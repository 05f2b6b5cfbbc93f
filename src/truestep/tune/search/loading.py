"""Advice for a script that waits for its data: how many workers are enough, and what a step takes then.

Owns the prediction. Whether it comes true is measured where the knob for workers is tried.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from truestep.tune.knob import PHASES
from truestep.tune.profile.profile import Profile, percents

Limit = Literal["data", "compute", "cores"]
_LEAST_SHARE = 0.1
"""Of a step: a script that waits less for data is not bound by it."""
_LEAST_GAIN = 1.05
_GOOD_ENOUGH = 1.03
"""The fewest workers are advised whose step is within this of the best."""
_HAND_OVER_S = 0.0005
"""What it takes to hand a batch from a worker to the script, about; more for large ones."""
_MAX_WORKERS = 16
_MAX_PER_CORE = 4


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What a step takes with so many workers, and what it waits for then."""

    workers: int
    step_s: float
    limit: Limit
    """`data`: the workers are too slow. `compute`: they are not. `cores`: workers and training share them."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """How many workers a loader should have."""

    file: str | None
    line: int | None
    """Where its batches are taken."""
    loader: str
    dataset: str
    share: float
    """Of a step, waiting for data now."""
    workers_now: int
    workers: int
    step_s: float
    """As it was measured."""
    predicted_s: float
    gain: float
    """How many times as fast."""
    limit: Limit
    table: tuple[Predicted, ...]
    words: str
    """The advice in a sentence or two."""

    def as_fields(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def data_advice(profile: Profile, cores: int) -> Advice | None:
    """Return how many workers are enough and what is gained, or None if the script does not wait for data.

    With w workers a step takes as long as the slowest of three: the work for a batch divided by w, all else
    in a step, and what the processors have to do for both divided by the cores. The first batch of an epoch
    is waited for in full.
    """
    loader = profile.loader
    if loader is None or profile.share_of("data") < _LEAST_SHARE:
        return None
    table = tuple(_predict(profile, workers, cores) for workers in range(1, _most(cores) + 1))
    best = min(row.step_s for row in table)
    chosen = next(row for row in table if row.step_s <= _GOOD_ENOUGH * best)
    gain = profile.mean_s / chosen.step_s
    if gain < _LEAST_GAIN or chosen.workers == loader.workers:
        return None
    return Advice(
        file=loader.file,
        line=loader.line,
        loader=loader.kind,
        dataset=loader.dataset,
        share=profile.share_of("data"),
        workers_now=loader.workers,
        workers=chosen.workers,
        step_s=profile.mean_s,
        predicted_s=chosen.step_s,
        gain=gain,
        limit=chosen.limit,
        table=table,
        words=_words(profile, chosen, gain),
    )


def _most(cores: int) -> int:
    """Return how many workers are thought of: more than cores, as waiting for a disk takes none."""
    return min(_MAX_WORKERS, _MAX_PER_CORE * cores)


def _predict(profile: Profile, workers: int, cores: int) -> Predicted:
    loader = profile.loader
    assert loader is not None
    rest_s = profile.mean_s - loader.fetch_s
    if loader.workers == 0:
        # A worker has one thread: what several did in the script's own process takes it longer.
        work_s, work_cpu_s = max(loader.fetch_s, loader.fetch_cpu_s), loader.fetch_cpu_s
    else:
        # They are always at work, or the script would not wait for them.
        work_s = loader.workers * profile.mean_s
        work_cpu_s = work_s if loader.workers_cpu_s is None else loader.workers_cpu_s
    times: dict[Limit, float] = {
        "compute": rest_s + _HAND_OVER_S,
        "data": (work_s + _HAND_OVER_S) / workers,
        "cores": (work_cpu_s + profile.compute_cpu_s) / cores,
    }
    limit = max(times, key=lambda name: times[name])
    first_s = work_s / loader.length if loader.length else 0.0
    return Predicted(workers=workers, step_s=times[limit] + first_s, limit=limit)


_WHY: dict[Limit, str] = {
    "compute": "the model is then the bottleneck",
    "data": "data is still the bottleneck: make samples cheaper",
    "cores": "workers and the model then share the cores: make samples cheaper",
}


def _words(profile: Profile, chosen: Predicted, gain: float) -> str:
    loader = profile.loader
    assert loader is not None
    setting = f"num_workers={chosen.workers}, persistent_workers=True"
    if loader.kind == "Loader":  # our own
        setting = f"workers={chosen.workers}"
    percent = percents(profile.shares)[PHASES.index("data")]
    return (
        f"A step spends {percent} % of its time waiting for data. With {setting} "
        f"it should take {chosen.step_s * 1e3:.3g} ms instead of {profile.mean_s * 1e3:.3g} ms, "
        f"{gain:.2g} times as fast; {_WHY[chosen.limit]}."
    )
