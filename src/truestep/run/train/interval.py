"""How often to take snapshots: the interval that loses least, and what a run's own record says about it.

Pure functions over numbers and recorded events. When a snapshot is taken is the keeper's.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from truestep import record
from truestep.errors import TruestepError

_WORTH_SHARE, _WORTH_S = 0.01, 60.0
"""Below these, of the run's time and so far, nothing is said."""
_SHORTEST_S = 1.0
_NEVER = 500.0
"""Of intervals that last so many times between failures none is ever completed."""
_SIGNS_OF_LIFE = ("start", "phase", "steps", "values", "snapshot", "evaluate")
"""Lines that the training process itself writes while it trains."""


def goodput(
    interval_s: float, *, held_s: float, failure_every_s: float, write_s: float = 0.0, restart_s: float = 0.0
) -> float:
    """Return the share of time that goes into steps which are never done again.

    A snapshot every `interval_s` of training holds the loop for `held_s` and counts from `write_s` later on:
    it is written in the background. Failures come at random, one every `failure_every_s` on average, also
    while a restart of `restart_s` is under way.

    >>> round(goodput(600.0, held_s=1.0, failure_every_s=10_000.0, write_s=30.0, restart_s=120.0), 3)
    0.954
    """
    # Lives between failures are exponential; of each, whole intervals that were written count.
    span = (interval_s + held_s) / failure_every_s
    if span > _NEVER:
        return 0.0
    kept = math.exp(-(write_s + restart_s) / failure_every_s)
    return kept * interval_s / (failure_every_s * math.expm1(span))


def best_interval(held_s: float, *, failure_every_s: float) -> float:
    """Return the interval of the highest goodput; seconds of writing and restarting do not matter for it.

    To first order Young's `sqrt(2 * held_s * failure_every_s)`; this is exact for failures at random.

    >>> round(best_interval(1.0, failure_every_s=10_000.0), 1)
    140.8
    """
    held = held_s / failure_every_s
    share = math.sqrt(2.0 * held)
    for _ in range(50):
        # The derivative is zero where 1 - x = exp(-x - held); with expm1 small numbers keep their digits.
        change = (share + math.expm1(-share - held)) / (1.0 - math.exp(-share - held))
        share -= change
        if abs(change) <= 1e-12 * share:
            break
    return share * failure_every_s


@dataclass(frozen=True, kw_only=True)
class History:
    """What a record says of its snapshots and failures. A failure is a life that did not end by itself."""

    num_failures: int
    trained_s: float
    """From start to the last sign of life, over all lives."""
    interval_s: float
    """Between snapshots, in the median."""
    held_s: float
    """For how long one held the loop, in the median."""
    write_s: float
    """For how long one was being written, in the median; 0 where the record does not say."""
    lost_s: float
    """How much training the last failure undid."""

    @property
    def failure_every_s(self) -> float:
        """The mean time between failures, as far as seen: from one failure a rough guess."""
        return self.trained_s / self.num_failures


@dataclass(kw_only=True)
class _Life:
    begun_s: float
    first: int
    last_s: float
    is_ended: bool = False
    snapshots: list[tuple[int, float]] = field(default_factory=list)
    """Cursor and time of each."""
    held: list[float] = field(default_factory=list)
    writing: list[float] = field(default_factory=list)

    @property
    def intervals(self) -> list[float]:
        times = [self.begun_s, *(time_s for _, time_s in self.snapshots)]
        return [after - before for before, after in pairwise(times)]

    def lost_s(self, cursor: int) -> float:
        """How much was undone if the next life began at a cursor."""
        since = dict([(self.first, self.begun_s), *self.snapshots]).get(cursor, self.last_s)
        return max(0.0, self.last_s - since)


def read_history(events: Iterable[Mapping[str, Any]]) -> History | None:
    """Return what recorded events say; None unless the newest start follows a failure and snapshots."""
    lives = _read_lives(events)
    if len(lives) < 2 or lives[-2].is_ended:
        return None
    failed = [life for life in lives[:-1] if not life.is_ended]
    intervals = [interval for life in failed for interval in life.intervals]
    if not intervals:
        return None
    return History(
        num_failures=len(failed),
        trained_s=sum(life.last_s - life.begun_s for life in lives),
        interval_s=statistics.median(intervals),
        held_s=statistics.median(held for life in failed for held in life.held),
        write_s=statistics.median([written for life in failed for written in life.writing] or [0.0]),
        lost_s=failed[-1].lost_s(lives[-1].first),
    )


def _read_lives(events: Iterable[Mapping[str, Any]]) -> list[_Life]:
    lives: list[_Life] = []
    for event in events:
        kind, time_s = event["kind"], float(event["time_s"])
        if kind == "start":
            lives.append(_Life(begun_s=time_s, first=event["cursor"], last_s=time_s))
        elif not lives:
            continue
        elif kind == "end":
            lives[-1].is_ended = True
        elif kind in _SIGNS_OF_LIFE:
            lives[-1].last_s = time_s
            if kind == "snapshot":
                _add_snapshot(lives[-1], event, time_s)
    return lives


def _add_snapshot(life: _Life, event: Mapping[str, Any], time_s: float) -> None:
    life.snapshots.append((event["cursor"], time_s))
    life.held.append(float(event["held_s"]))
    if event.get("write_s") is not None:
        life.writing.append(float(event["write_s"]))


def advise(path: Path, *, max_share: float) -> str | None:
    """Return what `suggest` has to say after a failure, from a record; None where there is nothing to say."""
    try:
        history = read_history(record.read(path))
    except (KeyError, TypeError, ValueError, OSError, TruestepError):
        return None  # lines that make no sense are the report's to tell: advice must not stop a training
    return suggest(history, max_share=max_share) if history is not None else None


def suggest(history: History, *, max_share: float) -> str | None:
    """Return one line if snapshots at another interval would have saved time that is worth a line.

    Worth it are a hundredth of the run's time, and a minute so far. `max_share` of the time is the most that
    snapshots may take: a shorter interval than that allows is not suggested, as it would not be kept.
    """
    held_s, every_s = max(history.held_s, 1e-6), history.failure_every_s
    if every_s <= 0 or history.interval_s <= 0:
        return None
    best_s = best_interval(held_s, failure_every_s=every_s)
    best_s = _rounded(max(best_s, held_s / max_share, history.write_s, _SHORTEST_S))
    good_now, good_then = (
        goodput(interval_s, held_s=held_s, failure_every_s=every_s, write_s=history.write_s)
        for interval_s in (history.interval_s, best_s)
    )
    gain = good_then - good_now
    if gain < _WORTH_SHARE or gain * history.trained_s < _WORTH_S:
        return None
    return (
        f"snapshots every {_seconds(history.interval_s)} take {100 * held_s / history.interval_s:.2g} % of "
        f"the time, the last failure undid {_seconds(history.lost_s)}. With a failure every "
        f"{_seconds(every_s)}, one every {_seconds(best_s)} would leave {100 * good_then:.1f} % of the time "
        f"to training instead of {100 * good_now:.1f} %: pass snapshots=Snapshots(every_s={best_s:g}) to Run"
    )


def _rounded(seconds: float) -> float:
    """Two digits, upwards: the limits are from below."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return math.ceil(seconds / unit - 1e-9) * unit


def _seconds(value: float) -> str:
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if value >= 2 * unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.3g} s"
