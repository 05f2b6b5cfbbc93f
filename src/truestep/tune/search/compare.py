"""Two settings of one script, measured against each other: turn by turn, until it is clear or time is up.

Owns the method: warm-up found, turns of equal steps in the order A B B A, ratios of neighbours, when to stop.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median
from typing import Any

from truestep import watch
from truestep.tune.knob import WORTH, Knob
from truestep.tune.knobs import KNOBS
from truestep.tune.search.intervals import Interval, interval, warm_up
from truestep.tune.search.race import Contender, Turn

LATE = "the budget ended before it was measured"
_PAIR_S, _TURN_S = 0.25, 0.03
"""Each side's time in a pair, and in one of the turns that make it up: what disturbs lasts longer."""
_MIN_PAIRS, _MIN_KEPT, _MAX_PAIRS = 6, 8, 24
_CLEAR = 0.06
"""An interval of this width, as a part of its median, is narrow enough."""
_FAR = 1.05
"""An interval that begins here need not be narrow."""
_NOT_FAR = 1.1
"""Where an interval ends below, there is not much to miss."""
_MAX_STARTS = 4
_SLOW_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How fast a script is with other settings than those of `base`: a ratio of 1.2 is 20 % faster."""

    ratio: Interval | None
    """None if it could not be measured; `failed` says why."""
    base_peak_bytes: int = 0
    other_peak_bytes: int = 0
    base_losses: tuple[float | None, ...] = ()
    other_losses: tuple[float | None, ...] = ()
    failed: str | None = None
    seconds: float = 0.0

    @property
    def pays(self) -> bool:
        """Whether it is faster beyond doubt, by enough to be worth it."""
        return self.ratio is not None and self.ratio.num >= _MIN_KEPT and self.ratio.low > WORTH


def compare(  # limits: the two things that are compared, and of what
    script: watch.Script,
    base: Mapping[str, Any],
    other: Mapping[str, Any],
    *,
    seconds: float = 20.0,
    min_pairs: int = _MIN_PAIRS,
    knobs: Mapping[str, Knob] = KNOBS,
    on_status: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Run a script with two settings (values by the names of knobs), in turns, and compare its steps.

    It takes `seconds` at most, and less where the answer is clear after `min_pairs` of turns: enough to know
    whether it pays; more are for an interval that is to be shown. If the script fails with `base`, that is
    the user's mistake and an error; if it fails with `other`, that is the answer.
    """
    begun = time.monotonic()
    is_steady = "allocator" not in {*base, *other}
    with (
        Contender(script, base, knobs=knobs, is_steady=is_steady) as first,
        Contender(script, other, knobs=knobs, is_steady=is_steady) as second,
    ):
        race = _Race(first, second, until_s=begun + seconds, min_pairs=min_pairs, on_status=on_status)
        why = race.run()
        ratio = interval(race.ratios) if race.failed is None and race.ratios else None
        return Comparison(
            ratio=ratio,
            base_peak_bytes=first.peak_bytes,
            other_peak_bytes=second.peak_bytes,
            base_losses=tuple(race.losses[first]),
            other_losses=tuple(race.losses[second]),
            failed=None if ratio else why or LATE,
            seconds=time.monotonic() - begun,
        )


class _Race:
    """One comparison under way."""

    def __init__(
        self,
        first: Contender,
        second: Contender,
        *,
        until_s: float,
        min_pairs: int,
        on_status: Callable[[str], None],
    ) -> None:
        self._first, self._second = first, second
        self._both = (first, second)
        self._until_s, self._min_pairs, self._on_status = until_s, min_pairs, on_status
        self._turn_steps: int | None = None
        self._num_rounds = 1
        self._has_workers = False
        """Their steps are slow in turns, by design: what counts is the mean, noise or not."""
        self.failed: str | None = None
        """How the second broke the script, if it did: then what was measured before counts for nothing."""
        self.num_warm = 0
        self.ratios: list[float] = []
        self.losses: dict[Contender, list[float | None]] = {first: [], second: []}

    def run(self) -> str | None:
        """Measure; return why the second could not be, if so."""
        for _ in range(_MAX_STARTS):
            why = self._start()
            if why is not None or self._run_pairs():
                return self.failed or why
        return None

    def _start(self) -> str | None:
        """Bring both to the same step, past their warm-up."""
        for runner in self._both:
            runner.start()
        for runner in self._both:  # side by side: each stands still after its first step
            if runner.first(until_s=self._until_s) is None:
                return self._why(runner)
        if self._turn_steps is None:
            for runner in self._both:
                if not self._warm_up(runner):
                    return self._why(runner)
        for runner in self._both:
            behind = self.num_warm - runner.num_steps
            if behind > 0 and runner.advance(behind, until_s=self._until_s) is None:
                return self._why(runner)
        self._keep_losses()
        return None

    def _warm_up(self, runner: Contender) -> bool:
        """Run until steps take what they will take from there on."""
        seconds: list[float] = []
        num = 4
        while True:
            turn = runner.advance(num, until_s=self._until_s)
            if turn is None:
                return False
            seconds += turn.seconds
            step_s = median(turn.seconds)
            is_late = time.monotonic() + 4 * num * step_s > self._until_s
            if step_s > _SLOW_S or warm_up(seconds) is not None or is_late:
                break
            num = max(4, min(len(seconds), ceil(_PAIR_S / step_s)))
        workers = max((item["workers"] for item in runner.facts.get("loaders", ())), default=0)
        least = 2 if step_s > _SLOW_S else max(1, 4 * workers)
        self._has_workers |= workers > 0
        turn_s = _PAIR_S if workers else _TURN_S  # workers deliver in bursts
        self._turn_steps = max(self._turn_steps or 0, least, min(1000, round(turn_s / step_s)))
        self._num_rounds = max(1, round(_PAIR_S / (self._turn_steps * step_s)))
        self.num_warm = max(self.num_warm, runner.num_steps)
        return True

    def _run_pairs(self) -> bool:
        """Let both take turns; return whether it is over: clear, out of time, or the second has failed."""
        while not self._is_clear():
            seconds: dict[Contender, list[float]] = {runner: [] for runner in self._both}
            for number in range(self._num_rounds):
                is_even = (len(self.ratios) + number) % 2 == 0
                for runner in self._both if is_even else self._both[::-1]:
                    turn = runner.advance(self._turn_steps or 1, until_s=self._until_s)
                    if turn is None:
                        self._keep_losses()
                        return self._is_over(runner)
                    seconds[runner] += _warm_steps(turn)
            step_s = fmean if self._has_workers else median
            self.ratios.append(step_s(seconds[self._first]) / step_s(seconds[self._second]))
            self._on_status(f"{median(self.ratios):.2f} after {len(self.ratios)} pairs of turns")
            self._keep_losses()
        return True

    def _is_over(self, runner: Contender) -> bool:
        """The script has ended in the middle of a turn: whether there is a reason not to start it again."""
        if time.monotonic() >= self._until_s:
            return True
        if runner.code != 0:
            if runner is self._second and not self._fails_anyway():
                self.failed = f"failed after {runner.num_steps} steps: {_last_line(runner.tail)}"
            return True
        left = runner.num_steps - self.num_warm
        if left < 2:
            self.num_warm = max(1, runner.num_steps // 4)
            left = runner.num_steps - self.num_warm
        self._turn_steps, self._num_rounds = max(1, min(self._turn_steps or 1, left // 4)), 1
        for each in self._both:
            each.stop()
        return False

    def _fails_anyway(self) -> bool:
        """Whether the first, brought to the step at which the second has failed, fails there too."""
        behind = self._second.num_steps + 1 - self._first.num_steps
        is_ended = behind > 0 and self._first.advance(behind, until_s=self._until_s) is None
        return is_ended and self._first.code != 0 and time.monotonic() < self._until_s

    def _is_clear(self) -> bool:
        num = len(self.ratios)
        if num < self._min_pairs:
            return False
        found = interval(self.ratios)
        if found.high < WORTH or num >= _MAX_PAIRS:
            return True
        if found.median < 1.0 and num >= (8 if found.high < _NOT_FAR else 16):
            return True  # it would have to be much better than it was so far
        if num >= 12 and found.median < 1.01 and found.high < _NOT_FAR:
            return True
        is_narrow = found.high - found.low < _CLEAR * found.median
        is_far = found.low > _FAR
        return num >= _MIN_KEPT and found.low > WORTH and (is_narrow or is_far or num >= 16)

    def _keep_losses(self) -> None:
        for runner in self._both:
            if len(runner.losses) > len(self.losses[runner]):
                self.losses[runner] = list(runner.losses)

    def _why(self, runner: Contender) -> str:
        if time.monotonic() >= self._until_s:
            return LATE
        if runner is self._second and runner.code == 0:
            made = f"{runner.num_steps} steps"
            return f"step times did not settle in {made}; let the script train longer"
        if runner is self._second:
            self.failed = _last_line(runner.tail)
            return self.failed
        raise runner.error


def _warm_steps(turn: Turn) -> list[float]:
    """Return what steps of a turn took; the first one finds cold caches: longer turns go without it."""
    return turn.seconds[1:] if len(turn.seconds) >= 4 else turn.seconds


def _last_line(tail: str) -> str:
    lines = [line for line in tail.splitlines() if line.strip()]
    return lines[-1] if lines else "no error message"
